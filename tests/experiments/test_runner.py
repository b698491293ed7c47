"""Experiments: what is trained and what is not again, what a kill leaves, lists, tables and pictures."""

import os
import shutil
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from config.command_line import UserError
from config.options import Options, parse_options
from experiments.compare import LEFT_OUT, read_list
from experiments.record import RESULTS, Experiment, Record, Variant, machine
from experiments.report import describe, provenance, sentences, table, write_report
from experiments.runner import at_equal, run
from experiments.snapshot import Snapshot
from tests.helpers import ROOT, newest_checkpoint, start_python, wait_until
from training.state import model_config

SIZE = dict(n_layer=1, n_head=1, n_embd=8, block_size=4, batch_size=2, warmup_iters=1, dtype="float32")
SIZE |= dict(gradient_accumulation_steps=1, max_iters=6, lr_decay_iters=6, eval_interval=3, eval_iters=1)
FAST, SLOW = "rate 0.01", "rate 0.001"
LOSSES = {FAST: [2.0, 2.2, 2.1], SLOW: [2.1, 2.25, 2.3]}
CODE = Snapshot(ROOT, "this", {})


@pytest.fixture
def experiment(tiny_data, tmp_path):
    """Two learning rates, two seeds."""
    sets = {
        label: Variant(CODE, SIZE | {"dataset": str(tiny_data), "learning_rate": float(label[5:])})
        for label in LOSSES
    }
    return Experiment(tmp_path / "small.json", "Which rate?", "python -m small", sets, seeds=2)


def with_options(experiment, label, **options) -> Experiment:
    """The experiment with a set that is new or has other options than the first's."""
    variant = replace(experiment.sets[FAST], options=experiment.sets[FAST].options | options)
    return replace(experiment, sets=experiment.sets | {label: variant})


def recorded(experiment, losses, **changes) -> Record:
    """Write runs of each set to the record: each a final loss, None if it diverged."""
    record = experiment.record()
    for label, found in losses.items():
        for seed, loss in enumerate(found, 1):
            evaluations = [[0, 4.0, 4.0]] + ([[6, loss, loss]] if loss else [])
            one = {"seed": seed, "val": loss, "diverged": None if loss else 3, "steps": 6, "seconds": 1.5}
            record.add(label, one | {"evaluations": evaluations} | machine() | changes)
    return record


# Which runs are trained


@pytest.mark.parametrize("changes", [{"data": "0123456789ab"}, {"versions": "Python 2.7"}])
def test_runs_of_other_data_or_versions_are_not_mixed(experiment, tmp_path, changes):
    """A text of the same name, as the source of Python's library is with another Python."""
    recorded(experiment, {FAST: [2.0]}, **changes)
    before = experiment.path.read_bytes()
    for labels in ([FAST, SLOW], [SLOW]):
        with pytest.raises(UserError, match=f"small.json: a run had other .*{[*changes.values()][0]}, not "):
            run(experiment, labels, 1, tmp_path / "out")
    assert not (tmp_path / "out").exists() and experiment.path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_killed_list_goes_on_where_its_run_was(repository, tiny_data, tmp_path, number):
    long = SIZE | {"dataset": tiny_data, "max_iters": 1500, "lr_decay_iters": 1500, "eval_interval": 100}
    words = " ".join(f"--{name}={value}" for name, value in long.items())
    (tmp_path / "small.toml").write_text(f'[small]\nall = "{words}"\nseeds = 1\n[small.sets]\nit = ""\n')
    command = (
        "-m",
        "experiments.compare",
        tmp_path / "small.toml",
        f"--out={tmp_path / 'out'}",
        "--only=small: it",
    )
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
    (one,) = Record(tmp_path / "results" / "small.json").sets["it"]["runs"]
    assert one["steps"] == 1500 and [step for step, _, _ in one["evaluations"]] == list(range(0, 1501, 100))


def test_a_set_whose_options_change_begins_anew_and_one_that_is_gone_keeps_its_row(experiment):
    recorded(with_options(experiment, "lion", beta2=0.9), LOSSES | {"lion": [3.0, 3.1]})
    changed = with_options(experiment, FAST, beta1=0.8)
    record = recorded(changed, {FAST: [1.9]})
    assert [*record.losses(FAST)] == [1.9] and [*record.losses(SLOW)] == LOSSES[SLOW]
    assert record.taken_out == {"lion"} and [*Record(experiment.path).losses("lion")] == [3.0, 3.1]
    assert "| lion (tried, and taken out) | 3.0500 ± 0.0707 | " in table(changed, record)
    assert "Commit dd10b5e has them." in provenance(changed, record)
    experiment.path.write_text('{"sets": {')
    with pytest.raises(UserError, match="small.json: cannot be read as results"):
        experiment.record()


def test_equal_tokens_and_equal_time_are_as_many_steps_as_take_them(experiment, tmp_path):
    """The change's batches are of three times the tokens, and take one and a half times as long."""
    experiment = with_options(experiment, SLOW, batch_size=6, max_iters=12, lr_decay_iters=6)
    record = experiment.record()
    for label, ms in ((FAST, 10.0), (SLOW, 15.0)):
        record.set(label, ms=ms, timed="now")
    for equal, steps in (("tokens", 2), ("time", 4)):
        made = at_equal(experiment, equal)
        names = ("max_iters", "lr_decay_iters", "eval_interval")
        scheduled = [[x.options[name] for name in names] for x in made.sets.values()]
        assert scheduled == [[6, 6, 2], [steps, steps // 2, 1]]
        assert made.path == tmp_path / f"small_equal_{equal}.json"
        assert made.record().sets[SLOW]["ms"] == 15.0
    assert at_equal(experiment, "steps") == experiment


# The lists

LISTS = sorted((ROOT / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", LISTS, ids=[path.stem for path in LISTS])
def test_the_sets_of_a_list_are_those_that_its_results_are_of(path, tmp_path, monkeypatch):
    """Else the command would train them anew. Equal time has the steps that the base's time buys."""
    monkeypatch.chdir(ROOT)
    for name, (_, sets, _) in read_list(path).items():
        record, variants = Record(RESULTS / f"{name}.json"), {}
        timed = RESULTS / f"{name}_equal_time.json"
        for label, words in sets.items():
            found = record.sets[label]["options"]
            if not any(word.startswith("git:") for word in words):  # else another version's options
                options = parse_options(words)
                model_config(options, 65, None)  # raises for a bad shape
                values = {n: x for n, x in vars(options).items() if n not in LEFT_OUT}
                assert found == {n: x for n, x in values.items() if x != getattr(Options, n)}
            assert found["lr_decay_iters"] == found["max_iters"]
            assert found not in [x.options for x in variants.values()]
            variants[label] = Variant(CODE, found)
        if timed.exists():
            for file in (record.path, timed):
                shutil.copy(file, tmp_path)
            kept = at_equal(Experiment(tmp_path / f"{name}.json", "", "", variants), "time").record()
            assert all(kept.losses(label).size == Record(timed).losses(label).size > 1 for label in sets)
        else:
            assert all(record.losses(label).size > 1 for label in record.sets)  # also of those taken out


# Tables and pictures


def test_a_summary_is_mean_and_deviation_of_two_seeds_or_more():
    for losses, said in (
        ([2.0, 2.2, 2.1], f"2.1000 ± {np.std([2.0, 2.2, 2.1], ddof=1):.4f}"),
        ([2.0, 2.2, None], f"2.1000 ± {np.std([2.0, 2.2], ddof=1):.4f} (1 of 3 diverged)"),
        ([2.0], "one seed: no figure"),
        ([None, None], "2 of 2 diverged"),
        ([], "not run"),
    ):
        assert describe(pd.Series(losses, dtype=float)) == said


def test_a_table_has_differences_from_the_base_their_intervals_and_pairs(experiment):
    experiment = with_options(experiment, "more", beta2=0.9)
    record = recorded(experiment, {FAST: [2.0, 2.2], SLOW: [1.0, 1.2002, 1.5], "more": [2.0]})
    half = stats.t.ppf(0.975, 1) * 0.0001
    rows = table(experiment, record).splitlines()
    assert rows[2] == "| rate 0.01 | 2.1000 ± 0.1414 |  |  | 2 |  | 6 |"
    assert f"| **-0.9999 ± {half:.4f}** (2 pairs) | 0.5 | 3 | " in rows[3]
    assert rows[4] == "| more | one seed: no figure |  |  | 1 |  | 6 |"
    record.set(FAST, ms=1.26)
    assert "| 2 | 1.3 | 6 |" in table(experiment, record)
    text = table(replace(experiment, upward=True), recorded(experiment, {"more": [1.4, 1.65]}))
    assert "less that of the row above" in text and "| more | 1.5250 ± 0.1768 | **+0.4249 ± " in text


def test_a_report_says_how_its_runs_were_made_and_where(experiment):
    write_report(experiment)
    assert not experiment.path.with_suffix(".md").exists()  # no run has ended
    record = recorded(experiment, {FAST: [2.0, 2.2], SLOW: [2.5, 2.6, 2.7]})
    for number, one in enumerate(one for entry in record.sets.values() for one in entry["runs"]):
        one["cpu"] = "the first" if number < 3 else "the second"
    record.set(SLOW, ms=2.0, timed="on a Monday")
    write_report(experiment)
    text = experiment.path.with_suffix(".md").read_text()
    assert "On the first: 3 runs.\nOn the second: 2 runs." in text and "Steps timed on a Monday." in text
    assert "`python -m small`: 5 runs, " in text and machine()["versions"] in text


def test_of_several_changes_a_sentence_says_which_hold_together(experiment):
    """The first is outside of its interval, but not of one that is wide enough for two changes."""
    experiment = with_options(replace(experiment, planned=3), "more", beta2=0.9)
    pairs = {SLOW: [-0.10, -0.15, -0.19], "more": [0.10, 0.11, 0.12]}
    for found, low, high in ((pairs[SLOW], 0.0125, 0.06), (pairs["more"], 0, 0.0125)):
        assert low < stats.ttest_1samp(found, 0).pvalue < high
    losses = {label: [2.0 + x for x in found] for label, found in pairs.items()}
    record = recorded(experiment, {FAST: [2.0, 2.0, 2.0]} | losses)
    for label in experiment.sets:
        record.set(label, ms=1.0)
    first, second, both = sentences(experiment, record)
    assert first.startswith(f"{SLOW} helps by 0.1467 ± ") and second.startswith("more hurts by 0.1100 ± ")
    assert "Of 2 changes that do nothing, at least one shows something in 10%" in both
    assert both.endswith("all right in 95%: more hurts.")


def test_a_picture_has_a_dot_for_each_pair_and_the_interval(experiment, saved_figures):
    recorded(experiment, LOSSES | {SLOW: [*LOSSES[SLOW], 9.0]})
    write_report(experiment)
    (axes,) = saved_figures[-1][0].axes
    pairs = np.subtract(LOSSES[SLOW], LOSSES[FAST])
    dots, mean = axes.get_lines()[:2]
    assert [*dots.get_xdata()] == pytest.approx([*pairs]) and mean.get_xdata()[0] == pytest.approx(
        pairs.mean()
    )
    (bar,) = axes.collections[0].get_segments()
    interval = stats.ttest_rel(LOSSES[SLOW], LOSSES[FAST]).confidence_interval()
    assert [*bar[:, 0]] == pytest.approx([interval.low, interval.high])
    assert [label.get_text() for label in axes.get_yticklabels()] == [SLOW]
