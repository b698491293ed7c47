"""Experiments: runs of other code, what is trained and not again, what a kill leaves, tables and pictures."""

import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from common.files import write_whole
from config.options import parse_options
from evaluate import main as evaluate
from experiments import runner
from experiments.compare import LEFT_OUT, in_full, read_list
from experiments.record import RESULTS, Experiment, Record, Variant, machine, not_defaults
from experiments.report import describe, provenance, sentences, table, write_report
from experiments.runner import (
    Task,
    at_equal,
    defaults_of,
    evaluated,
    options_of,
    result_of,
    run,
    short_run,
    time_steps,
)
from experiments.snapshot import Snapshot, program
from tests.experiments.conftest import OPTIONS, result, words
from tests.helpers import ROOT, newest_checkpoint, refusal, start_python, wait_until
from training.state import model_config

CODE = Snapshot(ROOT, "this", {})
LOSSES = {"slow": [2.0, 2.2, 2.1], "fast": [2.1, 2.25, 2.3]}
RATES = {"slow": 0.001, "fast": 0.01, "faster": 0.1}
LISTS = sorted((ROOT / "experiments").glob("*.toml"))


@pytest.fixture
def experiment(tiny_data, tmp_path):
    """Three learning rates, two seeds."""
    options = OPTIONS | {"dataset": str(tiny_data)}
    sets = {label: Variant(CODE, options | {"learning_rate": rate}) for label, rate in RATES.items()}
    return Experiment(tmp_path / "small.json", "Which rate?", "python -m small", sets, seeds=2)


def with_options(experiment, label, **options) -> Experiment:
    variant = Variant(CODE, experiment.sets[label].options | options)
    return replace(experiment, sets=experiment.sets | {label: variant})


def recorded(experiment, losses, **changes) -> Record:
    """Write runs of each set to the record, by their final losses."""
    for label, found in losses.items():
        runs = [result(i, x, **changes) for i, x in enumerate(found, 1)]
        experiment.record().set(label, runs=runs, ms=2.0, timed="on a Monday")
    return experiment.record()


@pytest.mark.parametrize("changes", [{"data": "0123456789ab"}, {"versions": "Python 2.7"}])
def test_runs_of_other_data_or_versions_are_not_mixed(experiment, tmp_path, changes):
    """A text of the same name, as the source of Python's library is with another Python."""
    recorded(experiment, {"slow": [2.0]}, **changes)
    before = experiment.path.read_bytes()
    for label in ("slow", "fast"):
        said = refusal(run, experiment, [label], 1, tmp_path / "out")
        assert "small.json: a run had " in said and f" {[*changes.values()][0]}, not " in said
    assert not (tmp_path / "out").exists() and experiment.path.read_bytes() == before


EVALUATED = '{{"iter": {}, "train/loss": 3.0, "val/loss": 2.0}}\n'


@pytest.mark.parametrize("text", ["{", "[]", '{"val/loss": 1}', EVALUATED.format('"6"'), EVALUATED.format(4)])
def test_metrics_that_are_damaged_or_lack_the_last_evaluation_are_no_result(experiment, tmp_path, text):
    """Each of these runs has six iterations."""
    task = Task("slow", experiment.sets["slow"], 1, tmp_path)
    write_whole(path := task.folder / "metrics.jsonl", EVALUATED.format(6))
    assert result_of(task, 0).val == 2.0
    path.write_text(text)
    assert "metrics.jsonl: damaged (" in refusal(result_of, task, 0)


def test_a_run_that_has_saved_nothing_begins_with_its_weights_again(tmp_path):
    """After a kill in its first save. Scratch, where auto would begin, is another experiment."""
    task = Task("it", Variant(CODE, {"init_from": "out-base", "dataset": "x"}), 1, tmp_path)
    (task.folder / "checkpoints").mkdir(parents=True)
    assert "--init_from=out-base" in task.words()
    (task.folder / "checkpoints" / "5").mkdir()
    assert "--init_from=auto" in task.words()


def test_runs_of_a_text_are_not_taken_for_those_of_another_under_its_name(tiny_data, tmp_path):
    data, marks = shutil.copytree(tiny_data, tmp_path / "data"), set()
    for sha256 in ("a", "b", "b"):
        meta = json.loads((data / "meta.json").read_text()) | {"sha256": {"train": sha256, "val": "c"}}
        (data / "meta.json").write_text(json.dumps(meta))
        marks.add(Variant(CODE, {"dataset": str(data)}).mark)
    assert len(marks) == 2


def test_a_run_that_was_not_evaluated_has_no_loss_of_evaluate_py(experiment):
    """It would count as one that diverged."""
    experiment = replace(experiment, metric="loss")
    record = recorded(experiment, {"slow": [2.0, None]})
    assert record.losses("slow").isna().to_dict() == {2: True}


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"loss": "x", "bits_per_byte": 1}', '{"loss": NaN, "bits_per_byte": 1}']
)
def test_a_damaged_evaluation_is_refused_in_a_line(experiment, tmp_path, monkeypatch, text):
    task = Task("slow", experiment.sets["slow"], 1, tmp_path)
    write_whole(path := task.folder / "evaluation.json", text)
    monkeypatch.setattr(Task, "finish", lambda self, words: None)
    assert refusal(evaluated, task, result(1, 2.0)).startswith(f"{path}: cannot be read (")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_killed_list_goes_on_where_its_run_was(repository, tiny_data, tmp_path, number):
    long = " ".join(words(dataset=tiny_data, max_iters=1500, lr_decay_iters=1500, eval_interval=100))
    sets = 'it = ""\nother = "--learning_rate=0.1"\n'
    (tmp_path / "small.toml").write_text(f'[small]\nall = "{long}"\nseeds = 1\n[small.sets]\n{sets}')
    options = tmp_path / "small.toml", f"--out={tmp_path / 'out'}", "--only=small: it"
    command = "-m", "experiments.compare", *options
    process = start_python(*command, cwd=repository)
    wait_until(lambda: any(newest_checkpoint(path) for path in tmp_path.glob("out/runs/*")), process)
    (folder,) = tmp_path.glob("out/runs/*")
    process.send_signal(number)
    if number == signal.SIGKILL:  # nothing is asked to stop, as when a machine loses power
        found = subprocess.run(["pgrep", "-f", f"out_dir={folder}"], check=True, capture_output=True)
        for training in found.stdout.split():
            os.kill(int(training), number)
    process.communicate()
    stopped_at = newest_checkpoint(folder)  # of SIGTERM: the run was asked to stop as well, and saved
    assert 0 < stopped_at < 1500 and not (tmp_path / "results" / "small.json").exists()
    assert start_python(*command, cwd=repository).wait() == 0
    assert f"resuming at iter {stopped_at}" in (folder / "train.log").read_text()
    record = Record(tmp_path / "results" / "small.json")
    (one,) = record.sets["it"].runs
    assert one.steps == 1500 and [step for step, _, _ in one.evaluations] == list(range(0, 1501, 100))
    assert record.losses("other").empty


@pytest.fixture
def version(tmp_path):
    """`version(code)` makes a version whose train.py does this in its out_dir, and then waits for ever."""

    def make(code: str) -> Snapshot:
        (tmp_path / "train.py").write_text(
            "import json, os, sys, time\n"
            "words = dict(word[2:].split('=', 1) for word in sys.argv[1:])\n"
            "os.chdir(words['out_dir'])\n"
            f"{code}\n"
            "time.sleep(600)\n"
        )
        return Snapshot(tmp_path, "theirs", {})

    return make


def test_a_versions_options_are_those_that_its_train_py_writes(version):
    """Which is then ended."""
    code = version("json.dump(words | {'n_layer': 3}, open('options.json', 'w'))")
    found = options_of(code, ["--sharpness=2.5"])
    assert found["sharpness"] == "2.5" and found["n_layer"] == 3


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_version_finds_our_data_set_whatever_folder_the_variable_names(
    version, elsewhere, tmp_path, monkeypatch
):
    monkeypatch.setenv("NANOJAXGPT_DATA", str(tmp_path) if elsewhere else "")
    code = version("json.dump({'data': os.environ['NANOJAXGPT_DATA']}, open('options.json', 'w'))")
    assert options_of(code, [], "shakespeare_char")["data"] == str(ROOT / "data")
    assert elsewhere or options_of(code, [])["data"] == str(ROOT / "data")


def test_a_version_that_does_not_train_is_refused_in_a_line(version):
    for code, said in {
        "sys.exit('error: --qk is no option')": "theirs: --qk is no option",
        "open('options.json', 'w').write('[1]')": "theirs: its options cannot be read (",
    }.items():
        assert refusal(options_of, version(code), []).startswith(said)


def test_the_time_of_a_step_is_the_median_behind_the_first_ones(version, monkeypatch):
    monkeypatch.setattr(runner, "SECONDS", 0.03)
    times = [900.0, 800.0, 700.0, *[5.0] * 5, 6.0, 400.0]
    lines = [json.dumps({"iter": i, "loss": float(i), "ms": ms}) + "\n" for i, ms in enumerate(times)]
    lines.insert(0, '{"iter": 0, "train/loss": 4.0, "val/loss": 4.0}\n')
    code = version(f"open('metrics.jsonl', 'w').write({''.join(lines)!r})")
    assert short_run(Variant(code, {"dataset": "x"})) == (5.0, [float(i) for i in range(10)])


def test_a_run_that_diverges_is_timed_with_a_rate_that_changes_nothing(version, monkeypatch):
    monkeypatch.setattr(runner, "SECONDS", 0.0)
    lines = "".join(json.dumps({"iter": i, "loss": 1.0, "ms": 5.0}) + "\n" for i in range(10))
    diverges = "if words['learning_rate'] == '1e30': sys.exit('error: iter 1: loss is nan')"
    code = version(f"{diverges}\nopen('metrics.jsonl', 'w').write({lines!r})")
    assert short_run(Variant(code, {"dataset": "x", "learning_rate": "1e30"})) == (5.0, [])
    always = Variant(version("print('resuming')\nsys.exit('error: iter 1: loss is nan')"), {"dataset": "x"})
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # with it, the error would be last anyway
    assert refusal(short_run, always) == "theirs: iter 1: loss is nan"


def test_a_stop_while_steps_are_timed_ends_the_training(version, tmp_path):
    """The training would run on, with nobody to stop it."""
    pid = tmp_path / "pid"
    code = version(
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))\nos.kill(os.getppid(), {signal.SIGTERM:d})"
    )
    with pytest.raises(KeyboardInterrupt):
        short_run(Variant(code, {"dataset": "x"}))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_an_option_of_other_code_is_left_out_where_it_is_a_default_of_both(tmp_path):
    theirs = Snapshot(tmp_path, "theirs", {})
    assert defaults_of(theirs) == {}
    (tmp_path / "config").mkdir()
    (tmp_path / "config/options.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Options:\n    qk_norm: bool = True\n    n_layer: int = 12"
    )
    for values in ({"qk_norm": True}, {"qk_norm": False}):
        found = not_defaults(values | {"n_layer": 12, "seed": 2}, {"seed"}, defaults_of(theirs))
        assert found == values


def test_times_are_ratios_of_neighbours_in_time_with_students_interval(tmp_path, monkeypatch, capsys):
    """The machine is twice as slow in the second turn. Other code with the same losses is named."""
    sets = {x: Variant(Snapshot(None, "", {"model.py": x}), {}) for x in ("base", "idle", "other")}
    times = iter([2.0, 3.0, 3e3, 4.0, 6.0, 5.6e3, 2.0, 3.0, 3.2e3, 2.0, 3.0, 2.8e3, 2.0, 3.0, 3.2e3])
    losses = {"base": [4.0], "idle": [4.0], "other": [4.1]}
    monkeypatch.setattr(runner, "short_run", lambda x: (next(times), losses[x.code.files["model.py"]]))
    time_steps(experiment := Experiment(tmp_path / "it.json", sets=sets))
    found = {label: (x.ms, x.ratio_half) for label, x in experiment.record().sets.items()}
    # Student's t of four degrees of freedom is 2.7764; the ratios are 1500, 1400, 1600, 1400, 1600.
    half = pytest.approx(2.7764 * 100 / 5**0.5, rel=1e-4)
    assert found == dict(base=(2.0, 0.0), idle=(3.0, 0.0), other=(3000.0, half))
    assert capsys.readouterr().err.endswith("\nidle: 10 steps change nothing: does fast.py override it?\n")
    sets["new"] = Variant(Snapshot(None, "", {"model.py": "other"}), {})  # by turns with the base, now slower
    times = iter([4.0, 8.0] * 5)
    time_steps(experiment)
    again = {label: (x.ms, x.ratio_half) for label, x in experiment.record().sets.items()}
    assert again == found | {"new": (4.0, 0.0)}


def test_a_set_whose_options_change_begins_anew_and_one_that_is_gone_keeps_its_row(experiment):
    recorded(experiment, LOSSES | {"faster": [3.0, 3.1]})
    left = {label: experiment.sets[label] for label in LOSSES}
    changed = with_options(replace(experiment, sets=left), "slow", beta1=0.8)
    record = recorded(changed, {"slow": [1.9]})
    assert [*record.losses("slow")] == [1.9] and [*record.losses("fast")] == LOSSES["fast"]
    assert record.taken_out == {"faster"} and "Commit dd10b5e has them." in provenance(record)
    assert "| faster (tried, and taken out) | 3.0500 ± 0.0707 | " in table(record)
    experiment.path.write_text('{"sets": {"gone": {"options": {}, "runs": [{"seed": 1, "val": "x"}]}}}')
    assert "small.json: cannot be read (" in refusal(experiment.record)


def test_equal_tokens_and_equal_time_are_as_many_steps_as_take_them(experiment, tmp_path):
    """The change's batches are of three times the tokens, and take one and a half times as long."""
    experiment = with_options(experiment, "fast", batch_size=6, max_iters=12, lr_decay_iters=6)
    for label, ms in zip(experiment.sets, (10.0, 15.0, 10.0), strict=True):
        experiment.record().set(label, ms=ms, timed="now")
    for equal, steps in (("tokens", 2), ("time", 4)):
        made = at_equal(experiment, equal)
        names = ("max_iters", "lr_decay_iters", "eval_interval")
        scheduled = {label: [x.options[name] for name in names] for label, x in made.sets.items()}
        assert scheduled == {"slow": [6, 6, 2], "fast": [steps, steps // 2, 1], "faster": [6, 6, 2]}
        assert made.path == tmp_path / f"small_equal_{equal}.json" and made.record().sets["fast"].ms == 15


@pytest.mark.parametrize(
    ("ms", "half", "steps"),
    [(5.0, 0.0, 120), (5.0, 0.1, 100), (9.0, 0.05, 63), (9.0, 0.2, 60), (15.0, 0.1, 40), (15.0, 0.9, 40)],
)
def test_a_faster_step_buys_steps_only_for_the_time_that_it_surely_saves(experiment, ms, half, steps):
    for label in experiment.sets:
        experiment = with_options(experiment, label, max_iters=60, lr_decay_iters=60)
        experiment.record().set(label, ms=ms if label == "fast" else 10.0, ratio_half=half, timed="now")
    assert at_equal(experiment, "time").sets["fast"].options["max_iters"] == steps


@pytest.mark.parametrize("path", LISTS, ids=[path.stem for path in LISTS])
def test_the_sets_of_a_list_are_those_that_its_results_are_of(path, tmp_path, monkeypatch):
    """Else the command would train them anew. Equal time has the steps that the base's time buys."""
    monkeypatch.chdir(ROOT)
    for name, (_, sets, _) in read_list(path).items():
        record, variants = Record(RESULTS / f"{name}.json"), {}
        for label, line in sets.items():
            found = record.sets[label].options
            if not any(word.startswith("git:") for word in line):  # else another version's options
                options = parse_options(line)
                model_config(options, 65, None)  # raises for a bad shape
                assert found == not_defaults(vars(options), LEFT_OUT)
            assert found["lr_decay_iters"] == found["max_iters"]
            assert found not in [x.options for x in variants.values()]
            variants[label] = Variant(CODE, found)
        if (timed := RESULTS / f"{name}_equal_time.json").exists():
            for file in (record.path, timed):
                shutil.copy(file, tmp_path)
            kept = at_equal(Experiment(tmp_path / f"{name}.json", "", "", variants), "time").record()
            assert all(kept.losses(label).size == Record(timed).losses(label).size > 1 for label in sets)
        else:
            assert all(record.losses(label).size > 1 for label in record.sets)  # also of those taken out


def test_a_summary_is_mean_and_deviation_of_two_seeds_or_more():
    for losses, said in (
        ([2.0, 2.2, 2.1], "2.1000 ± 0.1000"),
        ([2.0, 2.2, None], f"2.1000 ± {np.std([2.0, 2.2], ddof=1):.4f} (1 of 3 diverged)"),
        ([2.0], "one seed: no figure"),
        ([None, None], "2 of 2 diverged"),
        ([], "not run"),
    ):
        assert describe(pd.Series(losses, dtype=float)) == said


def test_a_table_has_differences_from_the_base_or_from_the_row_above(experiment):
    record = recorded(experiment, {"slow": [2.0, 2.2], "fast": [1.0, 1.2002, 1.5], "faster": [0.9, 1.2]})
    half = stats.t.ppf(0.975, 1) * 0.0001
    rows = table(record).splitlines()
    assert rows[2] == "| slow | 2.1000 ± 0.1414 |  |  | 2 | 2.0 | 6 |"
    assert f"| **-0.9999 ± {half:.4f}** (2 pairs) | 0.5 | 3 | " in rows[3]
    text = table(replace(experiment, upward=True).record())
    assert "difference from the row above" in text and "| faster | 1.0500 ± 0.2121 | -0.0501 ± " in text


def test_a_report_says_how_its_runs_were_made_and_draws_pairs_and_intervals(experiment, saved_figures):
    write_report(experiment)
    assert not experiment.path.with_suffix(".md").exists()  # no run has ended
    recorded(experiment, {"slow": LOSSES["slow"]}, cpu="the first")
    recorded(experiment, {"fast": [*LOSSES["fast"], 9.0]}, cpu="the second")
    write_report(experiment)
    text = experiment.path.with_suffix(".md").read_text()
    assert "On the first: 3 runs.\nOn the second: 4 runs." in text and "Steps timed on a Monday." in text
    assert "`python -m small`: 7 runs, " in text and machine()["versions"] in text
    (axes,) = saved_figures[-1][0].axes
    pairs = np.subtract(LOSSES["fast"], LOSSES["slow"])
    dots, mean = axes.get_lines()[:2]
    assert [*dots.get_xdata(), mean.get_xdata()[0]] == pytest.approx([*pairs, pairs.mean()])
    (bar,) = axes.collections[0].get_segments()
    interval = stats.ttest_rel(LOSSES["fast"], LOSSES["slow"]).confidence_interval()
    assert [*bar[:, 0]] == pytest.approx([interval.low, interval.high])


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(block_size=8), " Its context: 8, the base's 4. Its tokens a step: 16, the base's 8."),
        (dict(block_size=8, batch_size=1), " Its context: 8, the base's 4."),
        (dict(batch_size=1, gradient_accumulation_steps=2), ""),
    ],
)
def test_other_contexts_or_tokens_a_step_are_said(experiment, options, said):
    """OPTIONS has steps of two rows of four tokens."""
    experiment = with_options(experiment, "fast", **options)
    two = replace(experiment, sets={label: experiment.sets[label] for label in LOSSES})
    (line,) = sentences(recorded(two, LOSSES))
    assert f"a step takes 1.00 times as long.{said} " in line and line.count(" Its ") == said.count(" Its ")
    ours = experiment.sets["fast"]
    assert f"fast, code of this:{said}" in [*in_full([], {"base": experiment.sets["slow"], "fast": ours})]


def test_of_several_changes_a_sentence_says_which_hold_together(experiment):
    """The first is outside of its interval, but not of one that is wide enough for two changes."""
    fast, faster = [-0.10, -0.15, -0.19], [0.10, 0.11, 0.12]
    assert 0.025 > stats.ttest_1samp(faster, 0).pvalue and 0.05 > stats.ttest_1samp(fast, 0).pvalue > 0.025
    losses = {"slow": [2.0] * 3, "fast": np.add(2, fast).tolist(), "faster": np.add(2, faster).tolist()}
    record = recorded(experiment := replace(experiment, planned=3), losses)
    first, second, both = sentences(record)
    assert first.startswith("fast helps by 0.1467 ± ") and second.startswith("faster hurts by 0.1100 ± ")
    assert "Luck alone moves one of 2 such intervals off 0 in 10%" in both
    assert both.endswith("hold together in 95%: faster hurts.")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_loss_that_is_trained_is_not_the_one_that_counts(clone, tiny_data, tmp_path):
    """The code's own evaluate.py finds the cross entropy, whatever train.py reports."""
    half = "return 0.5 * self.mean_nats(self.features(tokens, key=key), targets)"
    patch = f"\n\ndef loss(self, tokens, targets, *, key=None):\n    {half}\n\n\nFastGPT.loss = loss\n"
    (clone / "fast.py").write_text((clone / "fast.py").read_text() + patch)
    code = Snapshot(clone, "theirs", program(clone))
    variant = Variant(code, OPTIONS | {"dataset": str(tiny_data)})
    experiment = Experiment(tmp_path / "it.json", "?", "python -m it", {"it": variant}, 1, metric="loss")
    assert run(experiment, ["it"], 1, tmp_path) == 0
    (result,) = experiment.record().sets["it"].runs
    (folder,) = tmp_path.glob("runs/*")
    evaluate([f"--out_dir={folder}", f"--json={tmp_path / 'found.json'}", "--device=cpu"])
    found = json.loads((tmp_path / "found.json").read_text())["loss"]
    assert result.loss == pytest.approx(found, rel=1e-6)
    assert abs(result.val - result.loss) > 0.005
