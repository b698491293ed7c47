"""References: which runs have one, and where a loss lies in it."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import train
from config.options import Options, parse_options
from data.dataset import known_datasets
from runs import reference
from runs.reference import Reference, find_reference, mattering
from tests.config.test_experiments import CONFIG, EXPERIMENTS, values
from tests.helpers import refusal

FILES = sorted((CONFIG / "reference").glob("*.json"))
RUNS = {
    "1": [[0, 3.3], [5, 2.9], [10, 2.0]],
    "2": [[0, 3.4], [5, 3.0], [10, 2.2]],
    "3": [[0, 3.5], [5, 3.1], [10, 2.1]],
}


@pytest.fixture
def kept(tiny, tiny_data, tmp_path, monkeypatch):
    """Keep a reference of the tiny run, with `changes`; return the command line of the run."""
    monkeypatch.setattr(reference, "FOLDER", tmp_path / "reference")
    (tmp_path / "reference").mkdir()

    def keep(**changes):
        argv = tiny(tmp_path / "out")
        sums = {
            split: hashlib.sha256((tiny_data / f"{split}.bin").read_bytes()).hexdigest()
            for split in ("train", "val")
        }
        found = {
            "config": "config/tiny.py",
            "options": mattering(parse_options(argv).to_json()),
            "data": {"sha256": sums, "source": "a test"},
            "runs": RUNS,
            "within": 0.5,
        }
        (tmp_path / "reference" / "tiny.json").write_text(json.dumps(found | changes))
        return argv

    return keep


def found_by(argv, **changes):
    return find_reference(replace(parse_options(argv), **changes))


# Runs with a reference, and without


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"out_dir": "elsewhere", "seed": 7, "log_interval": 3, "eval_iters": 50, "eval_interval": 2},
        {"mesh": "data:2,fsdp:2", "dtype": "bfloat16", "remat": "block", "unroll": 1, "wandb_log": True},
        {"init_from": "auto"},
    ],
)
def test_what_does_not_matter_to_the_loss_leaves_the_reference(kept, changes):
    assert found_by(kept(), **changes).runs == RUNS


@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": 2e-3}, {"beta2": 0.9, "mlp": "gelu"}, {"max_iters": 600000}, {"init_from": "gpt2"}],
)
def test_a_changed_option_has_no_reference(kept, changes):
    assert found_by(kept(), **changes) is None


def test_other_data_and_data_without_checksums_have_no_reference(kept, tmp_path):
    argv = kept(data={"sha256": {"train": "0", "val": "0"}, "source": "other text"})
    assert found_by(argv) is None
    options = mattering(replace(parse_options(argv), dataset=str(tmp_path)).to_json())
    argv = kept(options=options)
    assert found_by(argv, dataset=str(tmp_path)) is None


def test_a_damaged_reference_is_refused(kept, tmp_path):
    argv = kept()
    (tmp_path / "reference" / "tiny.json").write_text('{"what": 1}')
    assert "tiny.json: cannot be read" in refusal(found_by, argv)


# Where a loss lies in it


def test_the_band_is_mean_and_deviation_at_each_evaluation():
    steps, mean, spread = Reference("c", {}, runs=RUNS).band()
    assert steps == [0, 5, 10]
    assert mean == pytest.approx([3.4, 3.0, 2.1])
    assert spread == pytest.approx([0.1, 0.1, 0.1])


@pytest.mark.parametrize(
    "loss, where",
    [(2.2999, "normal"), (1.9001, "normal"), (2.31, "higher than normal"), (1.8, "lower than normal")],
)
def test_a_loss_is_normal_within_what_other_seeds_give(loss, where):
    told = Reference("c", {}, runs=RUNS, within=0.2).verdict(loss)
    assert told == (
        f"val loss {loss:.4f}; 3 reference runs: 2.1000 ± 0.1000: {where} "
        "(19 of 20 seeds end within ± 0.2000)"
    )


def test_a_published_figure_is_told_as_what_it_is():
    published = {"loss": 2.85, "whose": "nanoGPT's README", "source": "https://example.org"}
    told = Reference("c", {}, published=published).verdict(3.0)
    assert (
        told == "val loss 3.0000; published, not measured here: 2.85 (nanoGPT's README; https://example.org)"
    )


def test_train_compares_its_end_and_draws_the_band(kept, capsys, saved_figures):
    argv = kept()
    train.main([*argv, "--max_iters=10"])
    printed = capsys.readouterr().out
    (verdict,) = [line for line in printed.splitlines() if "reference runs" in line]
    last = next(line for line in printed.splitlines() if line.startswith("iter 10: "))
    assert verdict.startswith(f"val loss {last.split()[-1]}; 3 reference runs: 2.1000 ± 0.1000: ")
    (axes,) = saved_figures[-1][0].axes
    assert "val of 3 reference runs" in [text.get_text() for text in axes.get_legend().get_texts()]
    (band,) = axes.collections
    assert tuple(band.get_facecolor()[0][:3]) == to_rgb("gray")
    low, high = band.get_paths()[0].get_extents().get_points()
    assert (low[0], high[0]) == (0, 10) and (low[1], high[1]) == pytest.approx((2.0, 3.5))


# The references of the repository


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_reference_has_the_options_of_its_config(path):
    found = Reference(**json.loads(path.read_text()))
    assert path.stem in EXPERIMENTS and found.config == f"config/{path.stem}.py"
    assert found.options == mattering(replace(Options(), **values(path.stem)).to_json())
    assert found.options.get("dataset", Options.dataset) in known_datasets()
    assert found.runs or found.published
    if found.runs:
        assert len(found.runs) >= 5 and found.band()[0][-1] == found.options["max_iters"]
        losses = [curve[-1][1] for curve in found.runs.values()]
        assert found.within > np.std(losses, ddof=1)
    if found.published:
        assert found.published["source"].startswith("https://")
