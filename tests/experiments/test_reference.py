"""References: which runs have one, and where a loss lies in it."""

import json
from dataclasses import replace

import pandas as pd
import pytest

import train
from config.options import parse_options
from experiments import reference
from experiments.record import RESULTS, Experiment, Record, Variant, data_mark
from experiments.reference import SOURCES, find_runs, verdict
from experiments.snapshot import Snapshot
from tests.experiments.conftest import result
from tests.helpers import ROOT, refusal

CURVES = {1: [3.3, 2.9, 2.0], 2: [3.4, 3.0, 2.2], 3: [3.5, 3.1, 2.1]}  # by seed, at 0, 5 and 10


@pytest.fixture
def kept(tiny, tiny_data, tmp_path, monkeypatch):
    """`kept(...)` keeps runs of the tiny config, of such data, and returns a run's command line."""
    argv = tiny(tmp_path / "out", max_iters=10)
    monkeypatch.setattr(reference, "SOURCES", {"tiny": "as it is"})
    monkeypatch.setattr(reference, "RESULTS", tmp_path)

    def keep(data=None):
        data = data or data_mark(str(tiny_data))
        variant = Variant(Snapshot(ROOT, "this", {}), dict(vars(parse_options(argv))))
        for seed, losses in CURVES.items():
            evaluations = [(step, val, val) for step, val in zip((0, 5, 10), losses, strict=True)]
            run = result(seed, losses[-1], evaluations=evaluations, data=data)
            Experiment(tmp_path / "tiny.json", sets={"as it is": variant}).record().add("as it is", run)
        return argv

    return keep


@pytest.mark.parametrize(
    "changes, has_one",
    [
        ({"out_dir": "elsewhere", "seed": 7, "log_interval": 3, "eval_iters": 50, "eval_interval": 2}, True),
        ({"mesh": "data:2,fsdp:2", "dtype": "bfloat16", "remat": "block", "unroll": 1}, True),
        ({"init_from": "auto", "wandb_log": True}, True),
        ({"beta2": 0.9}, False),
        ({"max_iters": 600000}, False),
    ],
)
def test_a_run_has_a_reference_while_all_that_matters_to_the_loss_is_the_same(kept, changes, has_one):
    options = replace(parse_options(kept()), **changes)
    assert [run.val for run in find_runs(vars(options))] == ([2.0, 2.2, 2.1] if has_one else [])


@pytest.mark.parametrize("data, changes", [(None, {"init_from": "gpt2"}), ("of another", {})])
def test_a_run_of_other_data_or_weights_has_none(kept, tmp_path, data, changes):
    options = replace(parse_options(kept(data)), **changes)
    (tmp_path / "options.json").write_text(json.dumps(vars(options)))
    (tmp_path / "metrics.jsonl").write_text('{"iter": 10, "train/loss": 2.0, "val/loss": 2.1}\n')
    assert "no reference has its data and options" in refusal(reference.main, [f"--of={tmp_path}"])


@pytest.mark.parametrize(
    "loss, where",
    [(2.5967, "normal"), (1.6033, "normal"), (2.5970, "higher than normal"), (1.603, "lower than normal")],
)
def test_a_loss_is_normal_within_what_other_seeds_give(loss, where):
    """Student's t of three runs is 4.3027: 4.3027 * 0.1 * (1 + 1 / 3) ** 0.5 = 0.4968."""
    said = verdict(loss, pd.Series([2.0, 2.2, 2.1]))
    assert said.startswith(f"val loss {loss:.4f}; 3 reference runs: 2.1000 ± 0.1000: {where} (")
    assert "19 of 20 seeds end within ± 0.4968" in said


def test_the_command_says_where_a_run_lies_and_draws_it_over_the_others(
    kept, tmp_path, capsys, saved_figures
):
    train.main(kept())
    printed = capsys.readouterr().out
    last = next(line for line in printed.splitlines() if line.startswith("iter 10: "))
    reference.main([f"--of={tmp_path / 'out'}"])
    said = capsys.readouterr().out
    assert said.startswith(f"val loss {last.split()[-1]}; 3 reference runs: 2.1000 ± 0.1000: ")
    (axes,) = saved_figures[-1][0].axes
    *others, ours = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert others == [[[0, a], [5, b], [10, c]] for a, b, c in CURVES.values()]
    assert ours[-1][1] == pytest.approx(float(last.split()[-1]), abs=1e-4)
    assert (tmp_path / "out" / "reference.svg").exists()


@pytest.mark.parametrize("name, label", SOURCES.items())
def test_each_reference_has_five_seeds_to_the_end(name, label):
    entry = Record(RESULTS / f"{name}.json").sets[label]
    assert len(entry.runs) >= 5 and all(run.val for run in entry.runs)
    assert {run.evaluations[-1][0] for run in entry.runs} == {entry.options["max_iters"]}
