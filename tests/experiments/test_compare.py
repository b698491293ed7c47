"""python -m experiments.compare: what it compares, what it answers, and what it refuses."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import evaluate
from common.files import read_json, write_whole
from data.tokenizer import CharTokenizer
from data.writer import load_tokenizer, write_text
from experiments import compare, reference, runner, snapshot
from experiments.compare import STATUS, CompareOptions, design, main, metric_of, needed, plan
from experiments.record import Variant, read_result
from experiments.reference import read_options
from experiments.report import against, provenance, say_seeds, sentences, table
from experiments.snapshot import Snapshot
from tests.damage import answers
from tests.experiments.conftest import result, words
from tests.helpers import ROOT, losses, refusal, slowly

RATE = "--learning_rate=0.02"
BASE = [2.0, 2.2, 2.1]


def end(experiment, losses) -> None:
    """Have runs of these sets end so, None diverged, and steps be timed."""
    for label, found in losses.items():
        folder = experiment.path.parent / "runs" / experiment.sets[label].mark
        for seed, loss in enumerate(found, 1):
            write_whole(Path(f"{folder}.seed-{seed}", "result.json"), result(seed, loss).to_json())
    for label in experiment.sets:
        experiment.record().set(label, ms=2.0 if label == "base" else 3.0, ratio_half=0.02, timed="now")


@pytest.fixture(scope="module")
def designed(tiny_data, repository, tmp_path_factory):
    base, out = words(dataset=tiny_data), tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot, "ROOT", repository)
        patched.setattr(compare, "take", cache(compare.take))  # it takes seconds
        experiment = design(base, [RATE], CompareOptions(power=0.1, out=str(out)))
        yield [*base, f"--change={RATE}", f"--out={out}"], experiment


@pytest.fixture
def compared(designed):
    """The words of a comparison, and its experiment, of which nothing is trained or timed."""
    for path in (out := designed[1].path.parent).glob("*.json"):
        path.unlink()
    shutil.rmtree(out / "runs", ignore_errors=True)
    return designed


def test_an_answer_is_a_sentence_a_table_and_a_status(compared, capfd):
    argv, experiment = compared
    end(experiment, {"base": BASE, RATE: [1.9, 2.1, 2.01]})
    assert main([*argv, "--seeds=3", "--json"]) == 0
    printed, err = capfd.readouterr()
    answer = json.loads(printed, parse_constant=pytest.fail)
    (change,), (words,) = answer["changes"], answer["words"]
    assert (change["change"], change["verdict"], change["looked"]) == (RATE, "helps", False)
    assert words.startswith(f"{RATE} helps by 0.0967 ± 0.0143 nats per token, at equal steps")
    assert "takes 1.50 ± 0.02 times as long" in words and answer["ms"] == {"base": 2.0, RATE: 3.0}
    assert answer["unit"] == "nats per token"
    assert "learning_rate: 0.01 becomes 0.02" in err and "training" not in err
    page = experiment.path.with_suffix(".md").read_text()
    assert words in page and f"| {RATE} | " in page


@pytest.mark.parametrize(
    "ours, status, said",
    [
        # From six seeds on, p is told: 2 / 2^6.
        ([1.9, 2.09, 1.98] * 2, 0, f"{RATE} helps by 0.1100 ± 0.0094 nats per token (p = 0.031), at equal"),
        ([2.2, 2.4, 2.3], 3, f"{RATE} hurts by 0.2000 ± 0.0000 nats per token"),
        ([1.9, 2.1, None], 1, f"{RATE}: no gain, 1 of its runs and 0 of base diverged, "),
        ([1.9, 2.25, 2.2], 1, f"{RATE}: no difference seen, +0.0167 ± 0.2586 nats per token, "),
        (BASE, 1, f"{RATE}: nothing changes, each seed ends with the same loss, "),
    ],
)
def test_other_answers_have_other_sentences(compared, ours, status, said):
    experiment = replace(compared[1], planned=len(ours))
    for label, found in (("base", BASE * 2), (RATE, ours)):
        experiment.record().set(label, runs=[result(seed, x) for seed, x in enumerate(found, 1)])
    (sentence,) = sentences(record := experiment.record())
    assert sentence.startswith(said) and STATUS[against(record, RATE).verdict] == status


def test_another_number_of_seeds_than_the_first_has_an_interval_for_every_look(compared, capfd):
    argv, experiment = compared
    for n in (9, 4):  # nothing is seen yet
        assert plan(replace(experiment, seeds=n), experiment.path.parent) == n
    found = []
    for n in (4, 6):
        end(experiment, {"base": [2.0] * n, RATE: [1.8, 1.9, 1.82, 1.85, 1.83, 1.88][:n]})
        main([*argv, f"--seeds={n}", "--json"])
        found.append(json.loads(capfd.readouterr().out, parse_constant=pytest.fail))
        shutil.rmtree(experiment.path.parent / "runs")  # to make room: what was seen is kept elsewhere
        assert plan(replace(experiment, seeds=6), experiment.path.parent) == 4
    first, second = (each["changes"][0] for each in found)
    pairs = second["pairs"]
    assert len(first["pairs"]) == 4 and not first["looked"] and len(pairs) == 6 and second["looked"]
    narrow = np.ptp(stats.ttest_1samp(pairs, 0).confidence_interval()) / 2
    assert second["half"] > 1.3 * narrow and "holds at every look" in found[1]["words"][0]


def test_power_is_of_pairs_or_of_the_base_or_of_references(compared, tmp_path, monkeypatch):
    """A difference of two runs that do not vary together has the spread of one, times the root of 2."""
    _, experiment = compared
    none = refusal(needed, experiment, RATE, 0.1)
    assert none.startswith("--power: no two seeds of the base are there")
    known = replace(experiment, path=tmp_path / "known.json", sets={"it": experiment.sets["base"]})
    known.record().set("it", runs=[result(i, x) for i, x in enumerate((2.0, 2.1, 2.3))])
    monkeypatch.setattr(reference, "RESULTS", tmp_path)
    monkeypatch.setattr(reference, "SOURCES", {"known": "it"})
    spread = np.std([2.0, 2.1, 2.3], ddof=1) * 2**0.5
    said = needed(experiment, RATE, 0.1)
    assert said == f"{RATE}: {say_seeds(0.1, spread, 2, 0, 0)}" and "minutes" not in said
    experiment.record().set("base", runs=[result(i, x) for i, x in enumerate(BASE)])
    said = needed(experiment, RATE, 0.1)
    assert said == f"{RATE}: {say_seeds(0.1, 0.1 * 2**0.5, 2, 0, 120.0)}" and "more minutes" in said
    experiment.record().set(RATE, runs=[result(i, x) for i, x in enumerate([1.9, 2.15, 2.0])])
    spread = np.std([0.1, 0.05, 0.1], ddof=1)
    assert needed(experiment, RATE, 0.1) == f"{RATE}: {say_seeds(0.1, spread, 2, 3, 120.0)}"


@pytest.mark.slow
def test_nothing_is_answered_before_all_runs_have_ended(clone, tiny_data, tmp_path, capfd):
    """The change's third seed is yet to be trained, which fails."""
    base, change, out = words(dataset=tiny_data), "--n_head=3", tmp_path / "out"
    experiment = design(base, [change], CompareOptions(power=0.1, out=str(out)))
    end(experiment, {"base": BASE, change: [1.0, 1.1]})
    assert main([*base, f"--change={change}", "--seeds=3", f"--out={out}"]) == 2
    printed, err = capfd.readouterr()
    assert printed == "" and "--n_head=3, seed 3 failed, to be tried again: error: " in err
    assert not experiment.path.with_suffix(".md").exists()


@pytest.mark.parametrize(
    "change, said",
    [
        ([], "give --change=, once for each: options, a config, or git:COMMIT"),
        (
            ["--seed=9", "--change=--n_layer=2"],
            "--seed is not used: compare gives each run its own: leave it",
        ),
        (["--change"], "give --change=, once for each: options, a config, or git:COMMIT"),
        (["--change=it's"], "--change=it's (No closing quotation)"),
        (["--change=--learning_rat=1"], "--learning_rat is not an option"),
        *slowly(
            (["--change=--max_iters=12"], "--equal=steps: not all have the same max_iters"),
            (["--change=--wandb_log=True"], "--wandb_log=True: the base has the same options and code"),
            (["--change=git:nowhere"], "git rev-parse nowhere^{commit}: "),
            (["--change=--n_head=3"], "n_embd=8 must be a multiple of n_head=3"),
            (["--change=--dataset=nowhere"], "dataset=nowhere: there is no "),
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(clone, tiny_data, tmp_path, change, said):
    line = refusal(main, [*words(dataset=tiny_data), *change, f"--out={tmp_path / 'out'}"])
    assert said in line and not [*tmp_path.glob("out/runs/*")]


def test_a_list_that_cannot_be_used_is_refused_in_a_line(tmp_path):
    path, valid = tmp_path / "mine.toml", "[a]\nall = ''\nsets = {it = ''}\n"
    assert "No such file" in refusal(main, [str(path)])
    texts = ["[a", "a = 1", "[a]\n", "[a]\nall = ''\nsets = 'it'", "[a]\nall = ''\nsets = {}"]
    for text in (*texts, valid + "seeds = '5x'", valid + "seeds = -1", valid + "question = 5"):
        path.write_text(text)
        assert "mine.toml: cannot be read as a list (" in refusal(main, [str(path)])
    path.write_text(valid)
    assert f"{path}: it has no set with 'a: other'" in refusal(main, [str(path), "--only=a: other"])
    for word in ("--change=--qk_norm=True", "--qk_norm=True", "--json"):
        assert "a list takes only" in refusal(main, [str(path), word])


def read_anyway(path, read) -> set[str]:
    """Return which damages of a file are read: each of the others is refused in a line."""
    return {what for what, line in answers(path, read).items() if line is None}


def test_a_damaged_result_is_refused_in_a_line(tmp_path):
    path = tmp_path / "mark.seed-1" / "result.json"
    write_whole(path, result(1, 2.0, loss=2.0, bits_per_byte=1.0, data="ab").to_json())
    measured = ("loss", "bits_per_byte")
    right = {f"{name} is {x}" for name in ("seconds", *measured) for x in ("a fraction", "2^31", "2^62")}
    right |= {f"{name} is null" for name in (*measured, "data", "diverged")}
    right |= {f"{name} is a long text" for name in ("versions", "cpu", "data", "date")}
    assert read_anyway(path, lambda: read_result(path)) == right | {f"without {name}" for name in measured}
    path.write_text(result(7, 2.0).to_json())
    said = f"{path}: cannot be read (seed is 7: its folder has another): restore it, or"
    assert refusal(read_result, path).startswith(said)


def test_damaged_results_are_refused_in_a_line(compared):
    """Show what is read, as a report would."""
    experiment = compared[1]
    experiment.record().set("base", runs=[result(1, 2.0)], ms=2.0, timed="now")

    def shown():
        record = experiment.record()
        if any(entry.runs for entry in record.sets.values()):
            table(record), sentences(record), provenance(record)

    whole = json.loads(experiment.path.read_text())
    whole["sets"] = {"gone": whole["sets"]["base"] | {"options": {"max_iters": 5}}}
    experiment.path.write_text(json.dumps(whole))
    right = {f"ms is {x}" for x in ("a fraction", "2^31", "null")}
    right |= {"timed is a long text", "timed is null", "runs is an empty list", "options is an empty object"}
    right |= {f"options.max_iters is {x}" for x in ("a negative number", "a huge integer", "2^31", "2^62")}
    right = {f"sets.gone.{x}" for x in right} | {"sets is an empty object", "without sets.gone"}
    right |= {f"without sets.gone.{x}" for x in ("ms", "timed", "options.max_iters")}
    assert read_anyway(experiment.path, shown) == right


def test_damaged_numbers_of_seeds_are_refused_in_a_line(compared):
    experiment = compared[1]
    plan(experiment, experiment.path.parent)
    path = experiment.path.parent / "seeds.json"
    (pair,) = json.loads(path.read_text())
    read = read_anyway(path, lambda: plan(experiment, path.parent))
    assert read == {"an empty object instead", f"without {pair}"}


@pytest.fixture
def data(tmp_path, tokenizer_json):
    """The names of data sets: of characters, a copy, the same text in pieces, another text, numbers."""
    text = "the café and the fox, the dog. " * 50
    char, pieces = CharTokenizer("".join(sorted(set(text)))), load_tokenizer(str(tokenizer_json))
    kinds = {"char": (text, char), "pieces": (text, pieces), "other": (text[::-1], char)}
    for kind, (content, tokenizer) in kinds.items():
        write_text(tmp_path / kind, content, tokenizer, "a test")
    for kind in ("copy", "numbers"):
        shutil.copytree(tmp_path / "char", tmp_path / kind)
    meta = json.loads((tmp_path / "numbers" / "meta.json").read_text())
    (tmp_path / "numbers" / "meta.json").write_text(json.dumps(meta | {"tokenizer": None, "sha256": {}}))
    return {kind: str(tmp_path / kind) for kind in (*kinds, "copy", "numbers")}


def test_losses_are_compared_of_equal_tokens_and_bits_of_equal_texts(data):
    def metric(*names, other=False):
        codes = Snapshot(ROOT, "this", {}), Snapshot(ROOT, "that", {"model.py": "x"} if other else {})
        return metric_of(
            {name: Variant(code, {"dataset": data[name]}) for code, name in zip(codes, names, strict=True)}
        )

    assert metric("char", "copy") == "val"
    assert metric("char", "pieces") == metric("char", "pieces", other=True) == "bits_per_byte"
    assert metric("char", "copy", other=True) == "loss"
    assert "other validation texts cannot be compared" in refusal(metric, "char", "other")
    assert "its tokens are not text" in refusal(metric, "char", "numbers")


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(runner, "SECONDS", 0.1)
    monkeypatch.setattr(runner, "TURNS", 2)


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
    ended = {}
    for path in (tmp_path / "runs").glob("*/options.json"):
        options = read_options(str(path))
        if options.wandb_project != "mine" and options.learning_rate < 1:
            ended[options.learning_rate, options.seed] = losses(path.parent)[6, "val/loss"]
    pairs = [ended[0.02, seed] - ended[0.01, seed] for seed in (1, 2)]
    assert first[0]["pairs"] == pytest.approx(pairs, abs=2e-5)
    assert (last[1]["verdict"], last[1]["diverged"], last[1]["pairs"]) == ("diverged", [0, 2], [])
    assert last[2]["pairs"] == [0, 0] and "nothing changes" in answers[2]["words"][2]
    assert all(ms > 0 for ms in answers[2]["ms"].values())


@pytest.mark.slow
def test_data_sets_of_other_tokens_are_compared_by_bits_per_byte(clone, tmp_path, data, capfd, soon):
    change = f"--change=--dataset={data['pieces']}"
    main([*words(dataset=data["char"]), change, f"--out={tmp_path}", "--seeds=1", "--json"])
    answer, bits = json.loads(capfd.readouterr().out), {}
    for path in (tmp_path / "runs").glob("*/options.json"):
        evaluate.main([f"--out_dir={path.parent}", f"--json={tmp_path / 'bits.json'}", "--device=cpu"])
        bits[read_options(str(path)).dataset] = read_json(tmp_path / "bits.json")["bits_per_byte"]
    (pair,) = answer["changes"][0]["pairs"]
    assert answer["unit"] == "bits per byte"
    assert pair == pytest.approx(bits[data["pieces"]] - bits[data["char"]], abs=1e-5)
