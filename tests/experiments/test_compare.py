"""python -m experiments.compare: what it compares, what it answers, and what it refuses."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import evaluate
import train
from config.files import write_whole
from data.tokenizer import CharTokenizer
from data.writer import load_tokenizer, write_text
from experiments import reference, snapshot
from experiments.compare import CompareOptions, design, main, metric_of, needed, plan
from experiments.record import data_mark, machine
from experiments.reference import read_options
from experiments.report import say_seeds
from experiments.statistics import difference
from tests.helpers import error_line, losses, refusal, slowly

OPTIONS = dict(n_layer=1, n_head=1, n_embd=8, block_size=4, batch_size=2, gradient_accumulation_steps=1)
OPTIONS |= dict(learning_rate=0.01, warmup_iters=1, max_iters=6, lr_decay_iters=6, eval_iters=1)
OPTIONS |= dict(dtype="float32", device="cpu")
RATE = "--learning_rate=0.02"
BASE = [2.0, 2.2, 2.1]


def words(**options) -> list[str]:
    return [f"--{name}={value}" for name, value in (OPTIONS | options).items()]


def end(experiment, losses) -> None:
    """Have runs of these sets end so, None diverged, and steps be timed."""
    for label, found in losses.items():
        variant = experiment.sets[label]
        data = {"data": data_mark(variant.option("dataset"))}
        for seed, loss in enumerate(found, 1):
            result = {"seed": seed, "val": loss, "diverged": None if loss else 3, "seconds": 60.0}
            path = experiment.path.parent / "runs" / f"{variant.mark}.seed-{seed}" / "result.json"
            write_whole(path, json.dumps(result | data | machine()))
    for label in experiment.sets:
        experiment.record().set(label, ms=2.0 if label == "base" else 3.0, timed="now")


@pytest.fixture(scope="module")
def designed(tiny_data, repository, tmp_path_factory):
    base, out = words(dataset=tiny_data), tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot, "ROOT", repository)
        yield (
            [*base, f"--change={RATE}", f"--out={out}"],
            design(base, [RATE], CompareOptions(power=0.1, out=str(out))),
        )


@pytest.fixture
def compared(designed):
    """The words of a comparison, and its experiment, of which nothing is trained or timed."""
    out = designed[1].path.parent
    for path in out.glob("*.json"):
        path.unlink()
    shutil.rmtree(out / "runs", ignore_errors=True)
    return designed


# What it answers


@pytest.mark.parametrize(
    "ours, verdict, status, said",
    [
        ([1.9, 2.1, 2.01], "helps", 0, f"{RATE} helps by 0.0967 ± 0.0143 nats per token, at equal steps; "),
        *slowly(
            ([2.2, 2.4, 2.3], "hurts", 3, f"{RATE} hurts by 0.2000 ± 0.0000 nats per token"),
            ([1.9, 2.1, None], "diverged", 1, f"{RATE}: no gain, 1 of its runs and 0 of base diverged, "),
            ([1.9, 2.25, 2.2], "none", 1, f"{RATE}: no difference seen, +0.0167 ± 0.2586 nats per token, "),
            (BASE, "none", 1, f"{RATE}: nothing changes, each seed ends with the same loss, "),
        ),
    ],
)
def test_an_answer_is_a_sentence_a_table_and_a_status(compared, capfd, ours, verdict, status, said):
    argv, experiment = compared
    end(experiment, {"base": BASE, RATE: ours})
    assert main([*argv, "--seeds=3", "--json"]) == status
    printed, err = capfd.readouterr()
    answer = json.loads(printed, parse_constant=pytest.fail)
    (change,) = answer["changes"]
    assert (change["change"], change["verdict"], change["looked"]) == (RATE, verdict, False)
    assert answer["words"][0].startswith(said) and "takes 1.50 times as long" in answer["words"][0]
    assert answer["ms"] == {"base": 2.0, RATE: 3.0} and answer["unit"] == "nats per token"
    assert "learning_rate: 0.01 becomes 0.02" in err and "training" not in err
    page = experiment.path.with_suffix(".md").read_text()
    assert (
        answer["words"][0] in page and f"| {RATE} | " in page and experiment.path.with_suffix(".svg").exists()
    )


def test_another_number_of_seeds_than_the_first_has_an_interval_for_every_look(compared, capfd):
    argv, experiment = compared
    for n in (9, 4):  # nothing is seen yet
        assert plan(replace(experiment, seeds=n), experiment.path.parent) == n
    found = []
    for n in (4, 6):
        end(experiment, {"base": [2.0] * n, RATE: [1.8, 1.9, 1.82, 1.85, 1.83, 1.88][:n]})
        main([*argv, f"--seeds={n}", "--json"])
        found.append(json.loads(capfd.readouterr().out, parse_constant=pytest.fail))
    first, second = (each["changes"][0] for each in found)
    pairs = second["pairs"]
    assert len(first["pairs"]) == 4 and not first["looked"] and len(pairs) == 6 and second["looked"]
    narrow = np.ptp(stats.ttest_1samp(pairs, 0).confidence_interval()) / 2
    assert second["half"] > 1.3 * narrow and "holds at every look" in found[1]["words"][0]


def test_power_is_of_pairs_or_of_the_base_or_of_references(compared, tmp_path, monkeypatch):
    """A difference of two runs that do not vary together has the spread of one, times the root of 2."""
    _, experiment = compared
    asked = CompareOptions(jobs=2, out=str(experiment.path.parent))
    none = refusal(needed, experiment, RATE, 0.1, asked)
    assert none.startswith("--power: no two seeds of the base are there")
    path, label = tmp_path / "known.json", "as it is"
    known = replace(experiment, path=path, sets={label: experiment.sets["base"]})
    known.record().set(label, runs=[{"val": loss} for loss in (2.0, 2.1, 2.2, 2.3)])
    monkeypatch.setattr(reference, "RESULTS", tmp_path)
    monkeypatch.setattr(reference, "SOURCES", {"known": label})
    spread = np.std([2.0, 2.1, 2.2, 2.3], ddof=1) * 2**0.5
    said = needed(experiment, RATE, 0.1, asked)
    assert said == f"{RATE}: {say_seeds(0.1, spread, 3, 0, 0)}" and "minutes" not in said
    end(experiment, {"base": BASE})
    said = needed(experiment, RATE, 0.1, asked)
    assert said == f"{RATE}: {say_seeds(0.1, 0.1 * 2**0.5, 2, 0, 60.0)}" and "more minutes" in said
    end(experiment, {RATE: [1.9, 2.15, 2.0]})
    spread = np.std([0.1, 0.05, 0.1], ddof=1)
    assert needed(experiment, RATE, 0.1, asked) == f"{RATE}: {say_seeds(0.1, spread, 2, 3, 60.0)}"


@pytest.mark.slow
def test_nothing_is_answered_before_all_runs_have_ended(clone, tiny_data, tmp_path, capfd):
    """The change's third seed is yet to be trained, which fails."""
    base, change, out = words(dataset=tiny_data), "--n_head=3", tmp_path / "out"
    experiment = design(base, [change], CompareOptions(power=0.1, out=str(out)))
    end(experiment, {"base": BASE, change: [1.0, 1.1]})
    assert main([*base, f"--change={change}", "--seeds=3", f"--out={out}"]) == 2
    printed, err = capfd.readouterr()
    assert printed == "" and "--n_head=3, seed 3 failed, the next time it is tried again: error: " in err
    assert not experiment.path.with_suffix(".md").exists()


# What it refuses


@pytest.mark.parametrize(
    "change, said",
    [
        ([], "--change: give options, a config, or git:COMMIT"),
        (["--change"], "--change: give options, a config, or git:COMMIT"),
        (["--change=it's"], "--change=it's (No closing quotation)"),
        (["--change=--learning_rat=1"], "--learning_rat is not an option"),
        *slowly(
            (["--change=--max_iters=12"], "--equal=steps: not all have the same max_iters"),
            (["--change=--wandb_log=True"], "--wandb_log=True: the base has the same options and code"),
            (["--change=git:nowhere"], "fatal: bad revision 'nowhere'"),
            (["--change=--n_head=3"], "n_embd=8 must be a multiple of n_head=3"),
            (["--change=--dataset=nowhere"], "dataset=nowhere: there is no "),
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(clone, tiny_data, tmp_path, capfd, change, said):
    try:
        line = refusal(main, [*words(dataset=tiny_data), *change, f"--out={tmp_path / 'out'}"])
    except AssertionError:  # another version has said it, in its own process
        line = error_line(capfd.readouterr().err)
    assert said in line and not [*tmp_path.glob("out/runs/*")]


def test_a_list_that_cannot_be_used_is_refused_in_a_line(tmp_path):
    path = tmp_path / "mine.toml"
    assert "No such file" in refusal(main, [str(path)])
    for text, said in (("[a", "cannot be read as a list"), ("[a]\n", "cannot be read as a list ('all')")):
        path.write_text(text)
        assert said in refusal(main, [str(path)])
    path.write_text('[a]\nall = ""\n[a.sets]\nit = ""\n')
    assert f"--only=a: other: {path} has no set" in refusal(main, [str(path), "--only=a: other"])
    for word in ("--change=--qk_norm=True", "--qk_norm=True", "--json"):
        assert "a list takes only" in refusal(main, [str(path), word])


# The metric


def test_losses_are_compared_of_equal_tokens_and_bits_of_equal_texts(tmp_path, tokenizer_json):
    text = "the café and the fox, the dog. " * 50
    kinds = {
        "char": (text, CharTokenizer("".join(sorted(set(text))))),
        "other": (text[::-1], CharTokenizer("".join(sorted(set(text))))),
        "pieces": (text, load_tokenizer(str(tokenizer_json))),
    }
    name = {kind: str(tmp_path / kind) for kind in (*kinds, "copy", "numbers")}
    for kind, (content, tokenizer) in kinds.items():
        write_text(tmp_path / kind, content, tokenizer, "a test")
    shutil.copytree(tmp_path / "char", tmp_path / "copy")
    shutil.copytree(tmp_path / "char", tmp_path / "numbers")
    meta = json.loads((tmp_path / "numbers" / "meta.json").read_text())
    del meta["sha256"]
    (tmp_path / "numbers" / "meta.json").write_text(json.dumps(meta | {"tokenizer": None}))
    assert metric_of({name["char"]}) == metric_of({name["char"], name["copy"]}) == "val"
    assert metric_of({name["char"], name["pieces"]}) == "bits_per_byte"
    said = refusal(metric_of, {name["char"], name["other"]})
    assert "losses on other validation texts cannot be compared" in said
    assert "its tokens are not text" in refusal(metric_of, {name["char"], name["numbers"]})


# The command end to end


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_answered_is_trained_once(clone, tiny_data, tmp_path, capfd, soon):
    """A rate, a rate that diverges, and a name for W&B, which changes nothing."""
    changes = RATE, "--learning_rate=1e30 --grad_clip=0", "--wandb_project=mine"
    argv = [*words(dataset=tiny_data), f"--out={tmp_path}", "--seeds=2", "--jobs=2"]
    answers, trained = [], []
    for count in (1, 1, 3):
        main([*argv, "--json", *(f"--change={x}" for x in changes[:count])])
        printed, err = capfd.readouterr()
        answers.append(json.loads(printed))
        trained.append(sorted(re.findall(r"training (.*), seed", err)))
        assert "loss" not in err
    assert trained == [[RATE, RATE, "base", "base"], [], sorted([*changes[1:], *changes[1:]])]
    first, again, last = (answer["changes"] for answer in answers)
    assert first == again and first[0]["pairs"] == last[0]["pairs"]
    by_rate = {}
    for folder in (tmp_path / "runs").iterdir():
        options = read_options(str(folder / "options.json"))
        if options.learning_rate < 1 and options.wandb_project != "mine":
            by_rate[options.learning_rate, options.seed] = losses(folder)[6, "val/loss"]
    pairs = [by_rate[0.02, seed] - by_rate[0.01, seed] for seed in (1, 2)]
    assert first[0]["pairs"] == pytest.approx(pairs, abs=2e-5)
    assert (last[1]["verdict"], last[1]["diverged"], last[1]["pairs"]) == ("diverged", [0, 2], [])
    assert last[2]["pairs"] == [0, 0] and "nothing changes" in answers[2]["words"][2]
    assert all(ms > 0 for ms in answers[2]["ms"].values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_data_sets_of_other_tokens_are_compared_by_bits_per_byte(
    clone, tmp_path, tokenizer_json, capfd, soon
):
    text = "the quick brown fox and the café. " * 60
    char = CharTokenizer("".join(sorted(set(text))))
    for name, tokenizer in (("char", char), ("pieces", load_tokenizer(str(tokenizer_json)))):
        write_text(tmp_path / name, text, tokenizer, "a test")
    change = f"--dataset={tmp_path / 'pieces'}"
    main(
        [*words(dataset=tmp_path / "char"), f"--change={change}", f"--out={tmp_path}", "--seeds=1", "--json"]
    )
    answer = json.loads(capfd.readouterr().out)
    bits = []
    for name in ("char", "pieces"):
        paths = (tmp_path / "runs").glob("*/options.json")
        (folder,) = (x.parent for x in paths if read_options(str(x)).dataset == str(tmp_path / name))
        evaluate.main([f"--out_dir={folder}", f"--json={tmp_path / 'bits.json'}", "--device=cpu"])
        bits.append(json.loads((tmp_path / "bits.json").read_text())["bits_per_byte"])
    assert answer["unit"] == "bits per byte"
    assert answer["changes"][0]["pairs"] == pytest.approx([bits[1] - bits[0]], abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_other_seeds_end_in_the_interval_of_five(tiny, tmp_path):
    """The mean of the ten varies as well: it is within the interval, times the root of 1 + 5 / 10."""
    ended = {}
    for rate in (0.005, 0.01):
        ended[rate] = pd.Series(dtype=float)
        for seed in range(1, 16):
            folder = tmp_path / f"{rate}-{seed}"
            train.main(tiny(folder, seed=seed, learning_rate=rate, max_iters=15, eval_iters=-1))
            ended[rate][seed] = losses(folder)[15, "val/loss"]
    five, ten = (difference(ended[0.01][part], ended[0.005][part]) for part in (slice(5), slice(5, None)))
    assert (len(five.pairs), len(ten.pairs), five.verdict, ten.verdict) == (5, 10, "helps", "helps")
    assert abs(ten.mean - five.mean) < five.half * (1 + 5 / 10) ** 0.5
