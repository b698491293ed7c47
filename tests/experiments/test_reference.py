"""References: which runs have one, and where a loss lies in it."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from config.options import Options, parse_options
from experiments import reference
from experiments.record import RESULTS, Experiment, Record, Variant, data_mark
from experiments.reference import SOURCES, find_runs, verdict
from experiments.snapshot import Snapshot
from tests.experiments.conftest import result
from tests.helpers import ROOT, refusal

CURVES = {1: [3.3, 2.9, 2.0], 2: [3.4, 3.0, 2.2], 3: [3.5, 3.1, 2.1]}  # by seed, at 0, 5 and 10


@pytest.fixture
def options(tiny, tiny_data, tmp_path, monkeypatch) -> Options:
    """The options of three runs that are the only reference."""
    monkeypatch.setattr(reference, "SOURCES", {"tiny": "as it is"})
    monkeypatch.setattr(reference, "RESULTS", tmp_path)
    options, data = parse_options(tiny("out", max_iters=10)), data_mark(str(tiny_data))
    variant = Variant(Snapshot(ROOT, "this", {}), dict(vars(options)))
    runs = [
        result(seed, c, evaluations=[(0, a, a), (5, b, b), (10, c, c)], data=data)
        for seed, (a, b, c) in CURVES.items()
    ]
    Experiment(tmp_path / "tiny.json", sets={"as it is": variant}).record().set("as it is", runs=runs)
    return options


def write_run(folder: Path, options: Options) -> None:
    """Write what train.py leaves of a run that ends with a loss of 2.1234."""
    (folder / "options.json").write_text(json.dumps(vars(options)))
    losses = {0: 3.5, 5: 3.0, 10: 2.1234}
    lines = [{"iter": i, "train/loss": 2.0, "val/loss": x} for i, x in losses.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


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
def test_a_run_has_a_reference_while_all_that_matters_to_the_loss_is_the_same(options, changes, has_one):
    found = find_runs(vars(replace(options, **changes)))
    assert [run.val for run in found] == ([2.0, 2.2, 2.1] if has_one else [])


@pytest.mark.parametrize("changes, other_data", [({"init_from": "gpt2"}, False), ({}, True)])
def test_a_run_of_other_data_or_weights_has_none(options, tmp_path, monkeypatch, changes, other_data):
    write_run(tmp_path, replace(options, **changes))
    if other_data:
        monkeypatch.setattr(reference, "data_mark", lambda dataset: "another")
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
    options, tmp_path, capsys, saved_figures
):
    write_run(tmp_path, options)
    reference.main([f"--of={tmp_path}"])
    assert capsys.readouterr().out.startswith("val loss 2.1234; 3 reference runs: 2.1000 ± 0.1000: normal")
    (axes,) = saved_figures[-1][0].axes
    *others, ours = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert others == [[[0, a], [5, b], [10, c]] for a, b, c in CURVES.values()]
    assert ours == [[0, 3.5], [5, 3.0], [10, 2.1234]] and (tmp_path / "reference.svg").exists()


@pytest.mark.parametrize("name, label", SOURCES.items())
def test_each_reference_has_five_seeds_to_the_end(name, label):
    entry = Record(RESULTS / f"{name}.json").sets[label]
    assert len(entry.runs) >= 5 and all(run.val for run in entry.runs)
    assert {run.evaluations[-1][0] for run in entry.runs} == {entry.options["max_iters"]}
