"""Experiments: what is trained and what is not again, what a kill leaves, tables and plots against NumPy."""

import json
import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from config.command_line import UserError
from experiments import runner
from experiments.record import (
    Experiment,
    Record,
    Summary,
    data_mark,
    machine,
    read_record,
    write_record,
)
from experiments.report import (
    band,
    best_of_each,
    describe,
    difference,
    draw_curves,
    draw_dots,
    draw_lines,
    markdown,
    seed_interval,
)
from experiments.runner import Task
from tests.helpers import (
    ROOT,
    newest_checkpoint,
    records,
    refusal,
    start_python,
    wait_until,
)
from tools.benchmarks import variants

SIZE = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 4, "batch_size": 2, "warmup_iters": 1}
SIZE |= {"max_iters": 6, "lr_decay_iters": 6, "eval_interval": 3, "eval_iters": 1, "dtype": "float32"}


@pytest.fixture
def experiment(tiny_data):
    """Two learning rates, two seeds."""
    sets = {
        f"rate {rate:g}": SIZE | {"dataset": str(tiny_data), "learning_rate": rate} for rate in (1e-2, 1e-3)
    }
    return Experiment("small", "small", "Which rate?", sets, draw_curves, seeds=2)


def made_up(seed, val, diverged=None, evaluations=()):
    steps = [[0, 4.0, 4.0], *evaluations] if diverged else [[0, 4.0, 4.0], *evaluations, [6, val, val]]
    run = {"seed": seed, "val": None if diverged else val, "best": val, "diverged": diverged, "steps": 6}
    return run | {"seconds": 1.5, "evaluations": steps, "losses": [[6, val]]} | machine()


def recorded(experiment, losses: dict[str, list[float | None]]) -> Record:
    """A record of runs that ended in these losses, by option set; None: diverged."""
    record = Record()
    for label, found in losses.items():
        for seed, loss in enumerate(found, 1):
            run = made_up(seed, 2.0 if loss is None else loss, diverged=None if loss is not None else 3)
            record = record.with_run(label, experiment.options(label), run)
    return record


# Training


def test_data_that_cannot_be_had_stop_all_runs_at_once(experiment, tmp_path):
    elsewhere = replace(
        experiment, sets={"one": experiment.sets["rate 0.01"] | {"dataset": "shakespear_char"}}
    )
    with pytest.raises(UserError, match="dataset=shakespear_char: .* did you mean shakespeare_char?"):
        runner.run([elsewhere], None, [f"--out={tmp_path / 'out'}"], tmp_path)
    assert not (tmp_path / "out").exists()


def test_runs_that_read_other_data_are_not_mixed(experiment, tmp_path):
    """A text of the same name, as the source of Python's library is with another Python."""
    record = recorded(experiment, {"rate 0.01": [2.0]})
    record.sets["rate 0.01"]["runs"][0]["data"] = "0123456789ab"
    write_record(tmp_path / "small.json", record)
    before = (tmp_path / "small.json").read_bytes()
    (dataset,) = {options["dataset"] for options in experiment.sets.values()}
    told = f"small.json: its runs have read another {dataset} \\(0123456789ab..., not [0-9a-f]{{12}}..., "
    for argv in ([], ["--only=rate 0.001"]):
        with pytest.raises(UserError, match=told):
            runner.run([experiment], None, [f"--out={tmp_path / 'out'}", *argv], tmp_path)
    rented = Task("small", "rate 0.01", experiment.options("rate 0.01"), 2, tmp_path / "out")
    with pytest.raises(UserError, match=told):  # the result of a machine that has prepared its own data
        runner.keep(tmp_path, rented, made_up(2, 2.0) | {"data": "ba9876543210"})
    assert not (tmp_path / "out").exists() and (tmp_path / "small.json").read_bytes() == before


@pytest.mark.slow
def test_two_sets_by_two_seeds_are_trained_once(experiment, tmp_path, capfd):
    argv = [f"--out={tmp_path / 'out'}", "--jobs=2"]
    assert runner.run([experiment], None, argv, tmp_path) == 0
    found = json.loads((tmp_path / "small.json").read_text())["sets"]
    assert {label: [run["seed"] for run in entry["runs"]] for label, entry in found.items()} == {
        "rate 0.01": [1, 2],
        "rate 0.001": [1, 2],
    }
    for label, entry in found.items():
        for run in entry["runs"]:
            (folder,) = (tmp_path / "out" / "small").glob(f"rate-{label[5:]}.*.seed-{run['seed']}")
            evaluated = [r for r in records(folder) if "val/loss" in r]
            assert (
                run["val"] == pytest.approx(evaluated[-1]["val/loss"], abs=1e-5)
                and evaluated[-1]["iter"] == 6
            )
            assert [iteration for iteration, _, _ in run["evaluations"]] == [0, 3, 6]
            assert run["data"] == data_mark(experiment.sets[label]["dataset"]) and len(run["data"]) == 12
            assert not (folder / "checkpoints").exists()
    assert len({run["val"] for entry in found.values() for run in entry["runs"]}) == 4
    before = (tmp_path / "small.json").read_bytes(), (tmp_path / "small.svg").read_bytes()
    capfd.readouterr()
    assert runner.run([experiment], None, argv, tmp_path) == 0  # nothing is left to do
    assert "training" not in capfd.readouterr().out
    assert before == ((tmp_path / "small.json").read_bytes(), (tmp_path / "small.svg").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_killed_experiment_goes_on_where_its_run_was(tiny_data, tmp_path, number):
    long = SIZE | {"dataset": str(tiny_data), "max_iters": 1500, "lr_decay_iters": 1500, "eval_interval": 100}
    (tmp_path / "small.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from experiments.record import Experiment\n"
        "from experiments.report import draw_curves\n"
        "from experiments.runner import run\n"
        f"experiment = Experiment('small', 'small', 'How far?', {{'it': {long!r}}}, draw_curves, seeds=1)\n"
        f"sys.exit(run([experiment], None, ['--out={tmp_path / 'out'}'], Path({str(tmp_path)!r})))\n"
    )
    process = start_python(tmp_path / "small.py")
    wait_until(lambda: bool(list(tmp_path.glob("out/small/*"))), process)
    (folder,) = tmp_path.glob("out/small/*")
    wait_until(lambda: newest_checkpoint(folder) > 0, process)
    process.send_signal(number)
    if number == signal.SIGKILL:  # nothing is asked to stop, as when a machine loses power
        os.kill(int((folder / "lock.txt").read_text().split()[1]), signal.SIGKILL)
    process.communicate()
    stopped_at = newest_checkpoint(folder)  # of SIGTERM: the run was asked to stop as well, and saved
    assert 0 < stopped_at < 1500 and not (tmp_path / "small.json").exists()
    assert start_python(tmp_path / "small.py").wait() == 0
    assert f"resuming at iter {stopped_at}" in (folder / "train.log").read_text()
    (run,) = json.loads((tmp_path / "small.json").read_text())["sets"]["it"]["runs"]
    assert run["steps"] == 1500 and [step for step, _, _ in run["evaluations"]] == list(range(0, 1501, 100))


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_others_go_on(experiment, tmp_path, capfd):
    sets = experiment.sets | {"rate 0.01": experiment.sets["rate 0.01"] | {"n_head": 3}}
    experiment = replace(experiment, sets=sets, seeds=1)
    assert runner.run([experiment], None, [f"--out={tmp_path / 'out'}"], tmp_path) == 1
    err = capfd.readouterr().err
    assert "rate 0.01, seed 1: failed with status 2: error: " in err and "failed: rate 0.01, seed 1" in err
    assert list(read_record(tmp_path / "small.json").sets) == ["rate 0.001"]


def test_every_set_gets_its_first_seed_before_its_second(experiment, tmp_path):
    due = runner.tasks(experiment, Record(), tmp_path)
    assert [str(task) for task in due] == [
        f"rate {rate}, seed {seed}" for seed in (1, 2) for rate in (0.01, 0.001)
    ]
    assert len({task.folder for task in due}) == 4


def test_what_has_a_result_is_not_due_and_a_changed_set_is(experiment, tmp_path):
    record = recorded(experiment, {"rate 0.01": [2.0, 2.1], "rate 0.001": [3.0]})
    assert [str(task) for task in runner.tasks(experiment, record, tmp_path)] == ["rate 0.001, seed 2"]
    assert len(runner.tasks(experiment, record, tmp_path, seeds=3)) == 3
    old = runner.tasks(experiment, Record(), tmp_path)[0].folder
    changed = replace(experiment, sets={"rate 0.01": experiment.sets["rate 0.01"] | {"beta2": 0.9}})
    due = runner.tasks(changed, record, tmp_path)
    assert [task.seed for task in due] == [1, 2] and due[0].folder != old  # which another run may have left
    record = record.with_run("rate 0.01", changed.options("rate 0.01"), made_up(1, 1.9))
    assert len(record.runs("rate 0.01", changed.options("rate 0.01"))) == 1  # the old results are gone
    assert len(record.runs("rate 0.001", experiment.options("rate 0.001"))) == 1


@pytest.mark.parametrize(
    "status, line", [(2, "error: iter 4: the loss is nan, the gradient's norm nan; more")]
)
def test_a_run_that_diverged_is_a_result(experiment, tmp_path, status, line):
    task = runner.tasks(experiment, Record(), tmp_path)[0]
    task.folder.mkdir(parents=True)
    (task.folder / "train.log").write_text(f"iter 0: val loss 4\n{line}\n")
    found = [{"iter": 0, "train/loss": 4.0, "val/loss": 4.0}]
    found += [{"iter": i, "loss": 4.0 + i, "ms": 500.0} for i in range(4)]
    (task.folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in found))
    result = runner.result_of(task, status)
    assert result["diverged"] == 4 and result["val"] is None and result["seconds"] == 2.0
    assert result["losses"] == [[0, 4.0], [1, 5.0], [2, 6.0], [3, 7.0]]
    assert runner.result_of(task, 1) is None  # a crash is none


@pytest.mark.parametrize(
    "argv, told",
    [
        (["--seeds=0"], "--seeds: expected an integer, 1 or more, not 0"),
        (
            ["--only=rate7"],
            "--only=rate7: no option set has this in its name: small: rate 0.01; small: rate 0.001",
        ),
        (
            ["--equal_time"],
            "--equal_time: small: no step time of rate 0.01; rate 0.001: run it with --time first",
        ),
        (["--sed=1"], "--sed"),
    ],
)
def test_a_bad_command_line_is_one_line(experiment, tmp_path, argv, told):
    assert told in refusal(runner.run, [experiment], None, argv, tmp_path)


def test_an_option_that_there_is_not_is_one_line(experiment, tmp_path):
    bad = replace(experiment, sets={"it": {"learning_rat": 1}})
    assert "--learning_rat is not an option" in refusal(runner.run, [bad], None, ["--list"], tmp_path)


def test_damaged_results_are_one_line(experiment, tmp_path):
    (tmp_path / "small.json").write_text('{"sets": {')
    assert "small.json: cannot be read as results" in refusal(
        runner.run, [experiment], None, ["--draw"], tmp_path
    )


def test_a_list_says_what_is_done_and_missing(experiment, tmp_path, capsys):
    write_record(tmp_path / "small.json", recorded(experiment, {"rate 0.01": [2.0]}))
    runner.run([experiment], None, ["--list"], tmp_path)
    assert not (tmp_path / "small.md").exists()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        "rate 0.01 1 done, missing: seed 2".split(),
        "rate 0.001 0 done, missing: seed 1, 2".split(),
    ]


def test_a_set_whose_option_is_gone_keeps_its_row_and_is_never_due(experiment, tmp_path, capsys):
    sets = experiment.sets | {"lion": experiment.sets["rate 0.01"] | {"optimizer": "lion"}}
    experiment = replace(experiment, sets=sets, removed={"lion": "tried, and taken out"})
    write_record(tmp_path / "small.json", recorded(experiment, {"rate 0.01": [2.0], "lion": [3.0, 3.1]}))
    assert {task.label for task in runner.tasks(experiment, Record(), tmp_path)} == {
        "rate 0.01",
        "rate 0.001",
    }
    assert runner.run([experiment], None, ["--list"], tmp_path) == 0
    assert "lion" not in capsys.readouterr().out
    assert "small: lion" not in refusal(runner.run, [experiment], None, ["--only=lion"], tmp_path)
    assert runner.run([experiment], None, ["--draw"], tmp_path) == 0
    text = (tmp_path / "small.md").read_text()
    assert "| lion (tried, and taken out) | 3.0500 ± 0.0707 |" in text and "Commit dd10b5e has them." in text
    assert "1 of 4 runs are done" in text


def test_without_a_run_there_is_no_table(experiment, tmp_path, capsys):
    assert runner.run([experiment], None, ["--draw"], tmp_path) == 0
    assert capsys.readouterr().out == "small: no run has ended yet\n" and list(tmp_path.iterdir()) == []


def test_equal_time_gives_each_set_the_steps_that_take_the_first_ones_time(experiment, tmp_path):
    record = Record()
    for label, ms in (("rate 0.01", 10.0), ("rate 0.001", 15.0)):
        record = record.with_ms(label, experiment.options(label), ms, "now")
    write_record(tmp_path / "small.json", record)
    timed = runner.at_equal_time(experiment, "rate", tmp_path)
    assert [own["max_iters"] for own in timed.sets.values()] == [6, 4]
    assert [own["lr_decay_iters"] for own in timed.sets.values()] == [6, 4]
    assert timed.name == "small_equal_time"


def test_equal_time_needs_no_times_of_what_is_not_asked_for(experiment, tmp_path, capsys):
    test_equal_time_gives_each_set_the_steps_that_take_the_first_ones_time(experiment, tmp_path)
    both = [replace(experiment, name="untimed"), experiment]
    assert runner.run(both, None, ["--equal_time", "--only=small", "--list"], tmp_path) == 0
    assert "rate 0.01 0 done, missing: seed 1, 2".split() in map(
        str.split, capsys.readouterr().out.splitlines()
    )


# Tables and plots


LOSSES = {"rate 0.01": [2.0, 2.2, 2.1], "rate 0.001": [2.1, 2.25, 2.3]}


def test_a_difference_is_of_pairs_with_students_interval():
    a, b = (np.array(found) for found in LOSSES.values())
    ours, theirs = (Summary(dict(enumerate(found)), 0, 1.0) for found in (b, a))
    mean, half = difference(ours, theirs)
    interval = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))
    lone = Summary({0: 1.0}, 0, 1.0)
    assert difference(lone, theirs) is None  # no figure comes from one seed


@pytest.mark.parametrize(
    "losses, diverged, told",
    [
        ([2.0, 2.2, 2.1], 0, f"2.1000 ± {np.std([2.0, 2.2, 2.1], ddof=1):.4f}"),
        ([2.0, 2.2], 1, f"2.1000 ± {np.std([2.0, 2.2], ddof=1):.4f} (1 of 3 diverged)"),
        ([2.0], 0, "one seed: no figure"),
        ([], 2, "2 of 2 diverged"),
        ([], 0, "not run"),
    ],
)
def test_a_summary_is_mean_and_deviation_of_two_seeds_or_more(losses, diverged, told):
    assert describe(Summary(dict(enumerate(losses)), diverged, 1.0)) == told


def test_the_band_of_curves_is_numpys():
    curves = [[[0, 9, 4.0], [3, 9, 3.0], [6, 9, 2.0]], [[0, 9, 4.2], [6, 9, 2.4]], [[0, 9, 4.1], [6, 9, 2.5]]]
    steps, mean, spread = band(curves)
    values = np.array([[4.0, 4.2, 4.1], [2.0, 2.4, 2.5]])
    assert steps == [0, 6]
    np.testing.assert_allclose(mean, values.mean(1))
    np.testing.assert_allclose(spread, values.std(1, ddof=1))


def test_what_is_not_asked_for_keeps_its_table(experiment, tmp_path):
    both = [experiment, replace(experiment, name="other")]
    for each in both:
        write_record(tmp_path / f"{each.name}.json", recorded(experiment, LOSSES))
    assert runner.run(both, None, ["--draw", "--only=small"], tmp_path) == 0
    assert (tmp_path / "small.md").exists() and not (tmp_path / "other.md").exists()


def test_a_table_says_what_was_found_and_what_is_missing(experiment):
    record = recorded(experiment, {"rate 0.01": [2.0, 2.2], "rate 0.001": [1.0, 1.2002]})
    text = markdown(replace(experiment, seeds=3), record, drawn=True)
    assert "| rate 0.01 | 2.1000 ± 0.1414 |  | 2 |" in text
    half = stats.t.ppf(0.975, 1) * 0.0001
    assert f"| **-0.9999 ± {half:.4f}** | 2 |" in text
    assert "4 of 6 runs are done (3 seeds of each); `--list` names the others." in text
    assert (
        "python -m experiments.small" in text and machine()["cpu"] in text and machine()["versions"] in text
    )
    assert "Complete: 2 seeds of each." in markdown(experiment, record, drawn=True)


def test_a_table_says_which_machine_trained_which_seeds_and_how_many_pairs_there_are(experiment):
    record = recorded(experiment, {"rate 0.01": [2.0, 2.2], "rate 0.001": [2.5, 2.6, 2.7]})
    for number, run in enumerate(run for entry in record.sets.values() for run in entry["runs"]):
        run["cpu"] = "the first" if number < 3 else "the second"
    text = markdown(experiment, record, drawn=False)
    assert "On the first: seed 1, 2 of `rate 0.01`; seed 1 of `rate 0.001`." in text
    assert "On the second: seed 2, 3 of `rate 0.001`." in text
    assert "| rate 0.001 | 2.6000 ± 0.1000 | +0.4500 ± 0.6353 (2 pairs) | 3 |" in text


def test_steps_of_a_ladder_are_compared_with_the_one_below(experiment):
    record = recorded(experiment, {"rate 0.01": [2.0, 2.2], "rate 0.001": [1.5, 1.7]})
    sets = experiment.sets | {"more": experiment.sets["rate 0.001"] | {"beta2": 0.9}}
    experiment = replace(experiment, sets=sets, upward=True)
    record = record.with_run("more", experiment.options("more"), made_up(1, 1.4))
    record = record.with_run("more", experiment.options("more"), made_up(2, 1.65))
    text = markdown(experiment, record, drawn=True)
    assert "against the row above" in text and "| more | 1.5250 ± 0.1768 | -0.0750 ± " in text


def test_one_more_seed_ends_within_its_interval_in_19_cases_of_20():
    drawn = np.random.default_rng(0).normal(2.0, 0.01, (3000, 6))
    inside = [abs(row[5] - row[:5].mean()) <= seed_interval(list(row[:5])) for row in drawn]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.012)  # three standard errors


def test_a_best_rate_is_named_with_those_that_noise_does_not_set_apart_from_it(experiment):
    """Both seeds of the second and the third rate lie above the first's, the second's hardly twice alike."""
    losses = {"rate 0.1": [2.0, 2.1], "rate 0.01": [2.001, 2.2], "rate 0.001": [2.5, 2.601], "rate 1": [1.0]}
    sets = {label: SIZE | {"learning_rate": float(label.split()[1])} for label in losses}
    experiment = replace(experiment, sets=sets)
    found = best_of_each(experiment, recorded(experiment, losses), {"rate": list(losses)})
    half = stats.t.ppf(0.975, 1) * 0.05
    lowest = f"0.1 (the edge of what was tried), 2.0500 ± {half:.4f} (95%)"
    assert found == [f"Lowest mean of rate: {lowest}; within noise of it: 0.01."]


def test_steps_are_timed_by_turns(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "BUDGET", 0.1)
    monkeypatch.setattr(variants, "BLOCK", 0.02)
    first, second = experiment.sets
    assert runner.run([experiment], None, ["--time", f"--only={second}"], tmp_path) == 0
    record = read_record(tmp_path / "small.json")
    assert record.ms(second, experiment.options(second)) > 0
    assert record.ms(first, experiment.options(first)) is None
    assert runner.run([experiment], None, ["--time"], tmp_path) == 0
    record = read_record(tmp_path / "small.json")
    assert all(record.ms(label, experiment.options(label)) > 0 for label in experiment.sets)
    assert f"Steps timed on {machine()['date']} on {machine()['cpu']}" in (tmp_path / "small.md").read_text()


@pytest.mark.parametrize("kind", ["curves", "dots", "lines"])
def test_a_plot_has_the_means_and_the_spread(experiment, tmp_path, saved_figures, kind):
    def lines(axes, experiment, record):
        draw_lines(axes, experiment, record, "learning_rate", {"all": list(experiment.sets)})

    draw = {"curves": draw_curves, "dots": draw_dots, "lines": lines}[kind]
    experiment = replace(experiment, draw=draw)
    write_record(tmp_path / "small.json", recorded(experiment, LOSSES))
    assert runner.run([experiment], None, ["--draw"], tmp_path) == 0
    figure, data = saved_figures[-1]
    (axes,) = figure.axes
    means = [np.mean(found) for found in LOSSES.values()]
    spreads = [np.std(found, ddof=1) for found in LOSSES.values()]
    drawn = [line.get_xydata() for line in axes.get_lines()]
    if kind == "curves":
        assert [line[-1, 1] for line in drawn] == pytest.approx(means)
        tops = [collection.get_paths()[0].vertices for collection in axes.collections]
        ends = [np.ptp(vertices[vertices[:, 0] == 6][:, 1]) for vertices in tops]
        assert ends == pytest.approx([2 * spread for spread in spreads])
    elif kind == "dots":
        assert sorted(drawn[0][:, 0]) == sorted(LOSSES["rate 0.01"])
        assert drawn[1][0, 0] == pytest.approx(means[0])
    else:
        np.testing.assert_allclose(drawn[0], [[1e-2, means[0]], [1e-3, means[1]]])
        bars = axes.collections[0].get_segments()
        assert [np.ptp(bar[:, 1]) for bar in bars] == pytest.approx([2 * spread for spread in spreads])
    assert data.startswith(b"<?xml") and len(data) < 200_000


def test_a_record_is_read_as_it_was_written(experiment, tmp_path):
    record = recorded(experiment, LOSSES).with_ms("rate 0.01", experiment.options("rate 0.01"), 12.5, "now")
    write_record(tmp_path / "small.json", record)
    assert read_record(tmp_path / "small.json") == record
    assert math.isfinite(record.summary("rate 0.01", experiment.options("rate 0.01")).mean)
