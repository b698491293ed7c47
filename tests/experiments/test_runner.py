"""Experiments: what is trained and what is not again, what a kill leaves, tables and plots against NumPy."""

import json
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from config.command_line import UserError
from experiments import runner
from experiments.record import Experiment, Record, data_mark, machine
from experiments.report import best_of_each, describe, difference, markdown
from tests.helpers import ROOT, newest_checkpoint, records, refusal, start_python, wait_until
from tools.benchmarks import variants

SIZE = dict(n_layer=1, n_head=1, n_embd=8, block_size=4, batch_size=2, warmup_iters=1, dtype="float32")
SIZE |= dict(max_iters=6, lr_decay_iters=6, eval_interval=3, eval_iters=1)
FAST, SLOW = "rate 0.01", "rate 0.001"
LOSSES = {FAST: [2.0, 2.2, 2.1], SLOW: [2.1, 2.25, 2.3]}


@pytest.fixture
def experiment(tiny_data):
    """Two learning rates, two seeds."""
    sets = {label: SIZE | {"dataset": str(tiny_data), "learning_rate": float(label[5:])} for label in LOSSES}
    return Experiment("small", "Which rate?", sets, seeds=2)


@pytest.fixture
def run(tmp_path):
    """`run(experiment, "--list", ...)` does what the command line says, in the test's folder."""

    def call(experiment, *argv):
        return runner.run([experiment], [f"--out={tmp_path / 'out'}", *argv], tmp_path)

    return call


def recorded(experiment, folder, losses, **changes) -> Record:
    """A record, written to `folder`, of runs by option set: each a final loss, None if it diverged."""
    record = Record(experiment, folder)
    for label, found in losses.items():
        for seed, loss in enumerate(found, 1):
            evaluations = [[0, 4.0, 4.0]] + ([[6, loss, loss]] if loss else [])
            run = {"seed": seed, "val": loss, "diverged": None, "steps": 6, "seconds": 1.5}
            record.add(label, run | {"evaluations": evaluations} | machine() | changes)
    return record


def due(record, *argv) -> list[str]:
    asked = runner.RunnerOptions(**runner.given([*argv], runner.RunnerOptions))
    return [str(task) for task in runner.tasks(record, asked)]


# Which runs are trained


def test_runs_that_read_other_data_are_not_mixed(experiment, run, tmp_path):
    """A text of the same name, as the source of Python's library is with another Python."""
    recorded(experiment, tmp_path, {FAST: [2.0]}, data="0123456789ab")
    before = (tmp_path / "small.json").read_bytes()
    other = "small.json: its runs have read another .*tiny \\(0123456789ab..., not [0-9a-f]{12}..., "
    for argv in ([], [f"--only={SLOW}"]):
        with pytest.raises(UserError, match=other):
            run(experiment, *argv)
    assert not (tmp_path / "out").exists() and (tmp_path / "small.json").read_bytes() == before


@pytest.mark.slow
def test_two_sets_by_two_seeds_are_trained_once(experiment, run, tmp_path, capfd):
    assert run(experiment, "--jobs=2") == 0
    record = Record(experiment, tmp_path)
    for label in LOSSES:
        assert [one["seed"] for one in record.runs(label)] == [1, 2]
        for one in record.runs(label):
            (folder,) = (tmp_path / "out" / "small").glob(f"rate-{label[5:]}.*.seed-{one['seed']}")
            *_, last = (r for r in records(folder) if "val/loss" in r)
            assert last["iter"] == 6 and one["val"] == pytest.approx(last["val/loss"], abs=1e-5)
            assert [iteration for iteration, _, _ in one["evaluations"]] == [0, 3, 6]
            assert one["data"] == data_mark(experiment.sets[label]["dataset"]) and len(one["data"]) == 12
            assert not (folder / "checkpoints").exists()
    assert record.table()["val"].nunique() == 4
    before = [(tmp_path / f"small.{end}").read_bytes() for end in ("json", "md", "svg")]
    capfd.readouterr()
    assert run(experiment, "--jobs=2") == 0  # nothing is left to do
    assert "training" not in capfd.readouterr().out
    assert before == [(tmp_path / f"small.{end}").read_bytes() for end in ("json", "md", "svg")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_killed_experiment_goes_on_where_its_run_was(tiny_data, tmp_path, number):
    long = SIZE | {"dataset": str(tiny_data), "max_iters": 1500, "lr_decay_iters": 1500, "eval_interval": 100}
    (tmp_path / "small.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from experiments.record import Experiment\n"
        "from experiments.runner import run\n"
        f"experiment = Experiment('small', 'How far?', {{'it': {long!r}}}, seeds=1)\n"
        f"sys.exit(run([experiment], ['--out={tmp_path / 'out'}'], Path({str(tmp_path)!r})))\n"
    )
    process = start_python(tmp_path / "small.py")
    wait_until(lambda: any(newest_checkpoint(path) for path in tmp_path.glob("out/small/*")), process)
    (folder,) = tmp_path.glob("out/small/*")
    process.send_signal(number)
    if number == signal.SIGKILL:  # nothing is asked to stop, as when a machine loses power
        subprocess.run(["pkill", "-KILL", "-f", f"out_dir={folder}"], check=True)
    process.communicate()
    stopped_at = newest_checkpoint(folder)  # of SIGTERM: the run was asked to stop as well, and saved
    assert 0 < stopped_at < 1500 and not (tmp_path / "small.json").exists()
    assert start_python(tmp_path / "small.py").wait() == 0
    assert f"resuming at iter {stopped_at}" in (folder / "train.log").read_text()
    (one,) = json.loads((tmp_path / "small.json").read_text())["sets"]["it"]["runs"]
    assert one["steps"] == 1500 and [step for step, _, _ in one["evaluations"]] == list(range(0, 1501, 100))


def test_a_failed_run_is_named_and_the_others_go_on(experiment, run, tmp_path, capfd):
    sets = experiment.sets | {FAST: experiment.sets[FAST] | {"n_head": 3}}
    experiment = replace(experiment, sets=sets, seeds=1)
    assert run(experiment) == 1
    err = capfd.readouterr().err
    assert "rate 0.01, seed 1: failed: error: " in err and "failed: rate 0.01, seed 1" in err
    assert list(Record(experiment, tmp_path).sets) == [SLOW]


def test_what_has_a_result_is_not_due_and_a_changed_set_is(experiment, tmp_path):
    first_seeds_first = [f"{FAST}, seed 1", f"{SLOW}, seed 1", f"{FAST}, seed 2", f"{SLOW}, seed 2"]
    assert due(Record(experiment, tmp_path)) == first_seeds_first
    record = recorded(experiment, tmp_path, {FAST: [2.0, 2.1], SLOW: [3.0]})
    assert due(record) == [f"{SLOW}, seed 2"] and len(due(record, "--seeds=3")) == 3
    assert due(record, f"--only=small: {FAST}") == []
    changed = replace(experiment, sets=experiment.sets | {FAST: experiment.sets[FAST] | {"beta2": 0.9}})
    record = Record(changed, tmp_path)
    assert due(record) == [f"{FAST}, seed 1", f"{FAST}, seed 2", f"{SLOW}, seed 2"]
    asked = runner.RunnerOptions(seeds=3)  # the third seed of the old, three of the new: nothing resumes
    tasks = runner.tasks(Record(experiment, tmp_path), asked) + runner.tasks(record, asked)
    assert len({task.folder for task in tasks if task.label == FAST}) == 1 + 3
    recorded(changed, tmp_path, {FAST: [1.9]})
    assert Record(changed, tmp_path).table()["val"].tolist() == [1.9, 3.0]  # the old are gone


def test_a_run_that_diverged_is_a_result_and_one_that_crashed_is_none(experiment, tmp_path):
    task = replace(runner.tasks(Record(experiment, tmp_path), runner.RunnerOptions())[0], folder=tmp_path)
    (tmp_path / "train.log").write_text("iter 0: val loss 4\nerror: iter 14: the loss is nan; more\n")
    found = [{"iter": 0, "train/loss": 4.0, "val/loss": 4.0}]
    found += [{"iter": i, "loss": 4.0 + i, "ms": 500.0} for i in (0, 10)]  # each tenth step has a record
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in found))
    made = runner.result_of(task, 2)
    assert (made["diverged"], made["val"], made["seconds"]) == (14, None, 10.0)
    assert made["evaluations"] == [[0, 4.0, 4.0]]
    assert runner.result_of(task, 1) is None


# The command line


def test_a_bad_command_line_and_damaged_results_are_one_line(experiment, run, tmp_path):
    assert "--only=rate7: no option set has this in its name" in refusal(run, experiment, "--only=rate7")
    assert "small: no step time of rate 0.01: run --time first" in refusal(run, experiment, "--equal_time")
    assert "sed is not an option" in refusal(run, experiment, "--sed=1")
    bad = replace(experiment, sets={"it": {"learning_rat": 1}})
    assert "--learning_rat is not an option" in refusal(run, bad, "--list")
    (tmp_path / "small.json").write_text('{"sets": {')
    assert "small.json: cannot be read as results" in refusal(run, experiment, "--draw")


def test_a_list_says_what_is_done_and_missing(experiment, run, tmp_path, capsys):
    assert run(experiment, "--draw") == 0
    assert capsys.readouterr().out == "small: no run has ended yet\n" and list(tmp_path.iterdir()) == []
    recorded(experiment, tmp_path, {FAST: [2.0]})
    run(experiment, "--list")
    assert not (tmp_path / "small.md").exists()
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1:] == [
        "rate 0.01 1 done, missing: seed 2".split(),
        "rate 0.001 0 done, missing: seed 1, 2".split(),
    ]


def test_a_set_whose_option_is_gone_keeps_its_row_and_is_never_due(experiment, run, tmp_path, capsys):
    sets = experiment.sets | {"lion": experiment.sets[FAST] | {"optimizer": "muon"}}
    recorded(replace(experiment, sets=sets), tmp_path, {"lion": [3.0, 3.1], FAST: [2.0]})
    path = tmp_path / "small.json"
    path.write_text(path.read_text().replace('"muon"', '"lion"'))
    record = Record(experiment, tmp_path)
    record.add(FAST, record.runs(FAST)[0])  # and as the file is written again
    assert not [task for task in due(record, "--seeds=3") if "lion" in task]
    assert run(experiment, "--list") == 0
    assert "lion" not in capsys.readouterr().out
    assert "no option set" in refusal(run, experiment, "--only=lion")
    assert run(experiment, "--draw") == 0
    text = (tmp_path / "small.md").read_text()
    assert "| lion (tried, and taken out) | 3.0500 ± 0.0707 |" in text and "Commit dd10b5e has them." in text
    assert "1 of 4 runs are done" in text


def test_equal_time_gives_each_set_the_steps_that_take_the_first_ones_time(experiment, run, tmp_path, capsys):
    record = Record(experiment, tmp_path)
    for label, ms in ((FAST, 10.0), (SLOW, 15.0)):
        record.set(label, ms=ms, timed="now")
    timed = runner.at_equal_time(experiment, tmp_path)
    assert [(x["max_iters"], x["lr_decay_iters"]) for x in timed.sets.values()] == [(6, 6), (4, 4)]
    assert run(experiment, "--equal_time", "--only=small: ", "--list") == 0
    assert capsys.readouterr().out.startswith("small_equal_time: Which rate? In equal time.\n")


def test_steps_are_timed_by_turns(experiment, run, tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "BUDGET", 0.1)
    monkeypatch.setattr(variants, "BLOCK", 0.02)
    recorded(experiment, tmp_path, {SLOW: [2.0]})
    assert run(experiment, "--time", f"--only={SLOW}") == 0
    record = Record(experiment, tmp_path)
    assert record.entry(SLOW)["ms"] > 0 and "ms" not in record.entry(FAST)
    assert f"Steps timed on {machine()['date']} on {machine()['cpu']}" in (tmp_path / "small.md").read_text()


# Tables and plots


def test_a_difference_is_of_pairs_with_students_interval():
    a, b = (np.array(found) for found in LOSSES.values())
    ours, theirs = pd.Series(b), pd.Series(a)
    mean, half = difference(ours, theirs)
    interval = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))
    assert np.isnan(difference(ours[:1], theirs)[1])  # no figure comes from one seed


def test_a_summary_is_mean_and_deviation_of_two_seeds_or_more():
    for losses, said in (
        ([2.0, 2.2, 2.1], f"2.1000 ± {np.std([2.0, 2.2, 2.1], ddof=1):.4f}"),
        ([2.0, 2.2, None], f"2.1000 ± {np.std([2.0, 2.2], ddof=1):.4f} (1 of 3 diverged)"),
        ([2.0], "one seed: no figure"),
        ([None, None], "2 of 2 diverged"),
        ([], "not run"),
    ):
        assert describe(pd.Series(losses, dtype=float)) == said


def test_a_table_says_what_was_found_and_what_is_missing(experiment, tmp_path):
    record = recorded(replace(experiment, seeds=3), tmp_path, {FAST: [2.0, 2.2], SLOW: [1.0, 1.2002]})
    text = markdown(record)
    half = stats.t.ppf(0.975, 1) * 0.0001
    assert "| rate 0.01 | 2.1000 ± 0.1414 |  | 2 |" in text and f"| **-0.9999 ± {half:.4f}** | 2 |" in text
    assert "4 of 6 runs are done (3 seeds of each); `--list` names the others." in text
    assert all(words in text for words in ("python -m experiments.small", *machine().values()))
    assert "Complete: 2 seeds of each." in markdown(Record(experiment, tmp_path))


def test_a_table_says_how_many_runs_a_machine_trained_and_how_many_pairs_there_are(experiment, tmp_path):
    record = recorded(experiment, tmp_path, {FAST: [2.0, 2.2], SLOW: [2.5, 2.6, 2.7]})
    for number, one in enumerate(one for entry in record.sets.values() for one in entry["runs"]):
        one["cpu"] = "the first" if number < 3 else "the second"
    text = markdown(record)
    assert "On the first: 3 runs.\nOn the second: 2 runs." in text
    assert "| rate 0.001 | 2.6000 ± 0.1000 | +0.4500 ± 0.6353 (2 pairs) | 3 |" in text


def test_steps_of_a_ladder_are_compared_with_the_one_below(experiment, tmp_path):
    sets = experiment.sets | {"more": experiment.sets[SLOW] | {"beta2": 0.9}}
    losses = {FAST: [2.0, 2.2], SLOW: [1.5, 1.7], "more": [1.4, 1.65]}
    text = markdown(recorded(replace(experiment, sets=sets, upward=True), tmp_path, losses))
    assert "against the row above" in text and "| more | 1.5250 ± 0.1768 | -0.0750 ± " in text


def test_a_best_rate_is_named_with_those_that_noise_does_not_set_apart_from_it(experiment, tmp_path):
    """Both seeds of the second and the third rate lie above the first's, the second's hardly twice alike."""
    losses = {"rate 0.1": [2.0, 2.1], FAST: [2.001, 2.2], SLOW: [2.5, 2.601], "rate 1": [1.0]}
    sets = {label: SIZE | {"learning_rate": float(label.split()[1])} for label in losses}
    record = recorded(replace(experiment, sets=sets, lines={"rate": [*losses]}), tmp_path, losses)
    half = stats.t.ppf(0.975, 1) * 0.05
    lowest = f"0.1 (the edge of what was tried), 2.0500 ± {half:.4f} (95%)"
    assert best_of_each(record) == [f"Lowest mean of rate: {lowest}; within noise of it: 0.01."]


@pytest.mark.parametrize("lines", [{}, {"all": [*LOSSES]}], ids=["dots", "lines"])
def test_a_plot_has_the_means_and_the_spread(experiment, run, tmp_path, saved_figures, lines):
    experiment = replace(experiment, lines=lines)
    recorded(experiment, tmp_path, LOSSES | {SLOW: [*LOSSES[SLOW], None]})
    assert run(experiment, "--draw") == 0
    (axes,) = saved_figures[-1][0].axes
    means = [np.mean(found) for found in LOSSES.values()]
    spreads = [2 * np.std(found, ddof=1) for found in LOSSES.values()]
    drawn = [line.get_xydata() for line in axes.get_lines()]
    if not lines:
        assert sorted(drawn[0][:, 0]) == sorted(LOSSES[FAST])
        assert drawn[1][0, 0] == pytest.approx(means[0])
    else:
        np.testing.assert_allclose(drawn[0], [[1e-2, means[0]], [1e-3, means[1]]])
        bars = axes.collections[0].get_segments()
        assert [np.ptp(bar[:, 1]) for bar in bars] == pytest.approx(spreads)
