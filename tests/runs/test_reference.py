"""References: which runs have one, and where a loss lies in it."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import train
from config.files import read_json
from config.options import Options, parse_options
from runs import reference
from runs.reference import Reference, data_of, find_reference, mattering
from tests.config.test_experiments import CONFIG, EXPERIMENTS, values

RUNS = {
    "1": [[0, 3.3], [5, 2.9], [10, 2.0]],
    "2": [[0, 3.4], [5, 3.0], [10, 2.2]],
    "3": [[0, 3.5], [5, 3.1], [10, 2.1]],
}


@pytest.fixture
def kept(tiny, tiny_data, tmp_path, monkeypatch):
    """`kept(**changes)` keeps a reference of the tiny run, and returns the run's command line."""
    monkeypatch.setattr(reference, "FOLDER", tmp_path / "reference")

    def keep(**changes):
        argv = tiny(tmp_path / "out")
        options = mattering(parse_options(argv).to_json())
        found = Reference("config/tiny.py", options, data_of(str(tiny_data)), RUNS, within=0.5)
        replace(found, **changes).write(tmp_path / "reference" / "tiny.json")
        return argv

    return keep


@pytest.mark.parametrize(
    "changes",
    [
        {"out_dir": "elsewhere", "seed": 7, "log_interval": 3, "eval_iters": 50, "eval_interval": 2},
        {"mesh": "data:2,fsdp:2", "dtype": "bfloat16", "remat": "block", "unroll": 1, "wandb_log": True},
        {"init_from": "auto"},
    ],
)
def test_what_does_not_matter_to_the_loss_leaves_the_reference(kept, changes):
    assert find_reference(replace(parse_options(kept()), **changes)).runs == RUNS


@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": 2e-3}, {"beta2": 0.9, "mlp": "gelu"}, {"max_iters": 600000}, {"init_from": "gpt2"}],
)
def test_a_changed_option_has_no_reference(kept, changes):
    assert find_reference(replace(parse_options(kept()), **changes)) is None


def test_other_data_and_data_without_checksums_have_no_reference(kept, tmp_path):
    argv = kept(data={"sha256": {"train": "0", "val": "0"}, "source": "other text"})
    assert find_reference(parse_options(argv)) is None
    elsewhere = replace(parse_options(argv), dataset=str(tmp_path))
    kept(options=mattering(elsewhere.to_json()))
    assert find_reference(elsewhere) is None


@pytest.mark.parametrize(
    "loss, where",
    [(2.2999, "normal"), (1.9001, "normal"), (2.31, "higher than normal"), (1.8, "lower than normal")],
)
def test_a_loss_is_normal_within_what_other_seeds_give(loss, where):
    published = {"loss": 2.85, "whose": "nanoGPT's README", "source": "https://example.org"}
    found = Reference("c", {}, runs=RUNS, within=0.2, published=published)
    assert found.verdict(loss) == (
        f"val loss {loss:.4f}; 3 reference runs: 2.1000 ± 0.1000: {where} "
        "(19 of 20 seeds end within ± 0.2000); published, not measured here: 2.85 (nanoGPT's README; https://example.org)"
    )
    np.testing.assert_allclose(found.band(), [[0, 3.4, 0.1], [5, 3.0, 0.1], [10, 2.1, 0.1]])


def test_train_compares_its_end_and_draws_the_band(kept, capsys, saved_figures):
    train.main([*kept(), "--max_iters=10"])
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


@pytest.mark.parametrize("path", sorted((CONFIG / "reference").glob("*.json")), ids=lambda path: path.stem)
def test_a_reference_of_the_repository_has_the_options_of_its_config(path, tmp_path):
    found = Reference(**read_json(path))
    assert path.stem in EXPERIMENTS and found.config == f"config/{path.stem}.py"
    assert found.options == mattering(replace(Options(), **values(path.stem)).to_json())
    assert found.runs or found.published["source"].startswith("https://")
    if found.runs:
        assert len(found.runs) >= 5 and found.band()[-1, 0] == found.options["max_iters"]
        assert found.within > found.band()[-1, 2]
    found.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
