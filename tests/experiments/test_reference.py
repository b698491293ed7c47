"""References: which runs have one, and where a loss lies in it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import train
from config.options import parse_options
from experiments import reference
from experiments.record import Record, data_mark, machine
from experiments.reference import SOURCES, find_reference, verdict
from tests.helpers import refusal

CURVES = {1: [3.3, 2.9, 2.0], 2: [3.4, 3.0, 2.2], 3: [3.5, 3.1, 2.1]}  # by seed, at 0, 5 and 10


@pytest.fixture
def kept(tiny, tiny_data, tmp_path, monkeypatch):
    """`kept(...)` keeps runs of the tiny config, of such data, and returns a run's command line."""
    argv = tiny(tmp_path / "out", max_iters=10)
    config = tmp_path / "tiny.py"
    options = dict(vars(parse_options(argv)))
    names = [word[2:].partition("=")[0] for word in argv if word.startswith("--")]
    config.write_text("".join(f"{name} = {options[name]!r}\n" for name in names if name != "out_dir"))
    experiment = replace(reference.QUICKSTART, config=str(config))
    monkeypatch.setattr(reference, "SOURCES", ((experiment, "as it is"),))
    monkeypatch.setattr(reference, "Record", lambda x: Record(x, tmp_path))

    def keep(data=None):
        data = data or data_mark(str(tiny_data))
        for seed, losses in CURVES.items():
            evaluations = [[step, val, val] for step, val in zip((0, 5, 10), losses, strict=True)]
            run = {"seed": seed, "val": losses[-1], "evaluations": evaluations, "data": data, **machine()}
            Record(experiment, tmp_path).add("as it is", run)
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
        ({"init_from": "gpt2"}, False),
    ],
)
def test_a_run_has_a_reference_while_all_that_matters_to_the_loss_is_the_same(kept, changes, has_one):
    assert (find_reference(replace(parse_options(kept()), **changes)) is not None) == has_one


def test_other_data_have_no_reference(kept):
    assert find_reference(parse_options(kept(data="of another"))) is None


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
    train.main(argv := kept())
    printed = capsys.readouterr().out
    last = next(line for line in printed.splitlines() if line.startswith("iter 10: "))
    assert reference.main([f"--of={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"val loss {last.split()[-1]}; 3 reference runs: 2.1000 ± 0.1000: ")
    (axes,) = saved_figures[-1][0].axes
    (band,) = axes.collections[:1]
    low, high = band.get_paths()[0].get_extents().get_points()
    np.testing.assert_allclose((low, high), ((0, 2.0), (10, 3.5)))
    assert (tmp_path / "out" / "reference.svg").exists()
    train.main([*argv, "--max_iters=11", "--init_from=resume"])
    assert "no reference" in refusal(reference.main, [f"--of={tmp_path / 'out'}"])


@pytest.mark.parametrize("experiment, label", SOURCES)
def test_each_reference_has_five_seeds_to_the_end(experiment, label):
    record = Record(experiment)
    runs = record.runs(label)
    assert len(runs) >= 5 and record.losses(label).notna().all()
    assert {run["evaluations"][-1][0] for run in runs} == {record.options[label]["max_iters"]}
