"""Published runs: each has a source and a believable MFU, and they predict each other as the page says."""

import numpy as np
import pytest

from tools.planning.published import ENOUGH, RUNS, published_mfu
from tools.planning.target import DEVICES, parse_target


def test_every_run_has_a_source_known_devices_and_figures_that_agree():
    assert RUNS["run"].is_unique and not RUNS.isna().any().any()
    for run in RUNS.to_dict("records"):
        assert parse_target(run["on"]).device.name == run["device"]
        assert run["source"].startswith("https://") and run["date"].startswith("20")
        assert 0.8 < run["flops_per_token"] / (6 * run["parameters"]) < 1.6  # embeddings, and attention
        assert 0.2 < run["mfu"] < 0.85


def test_a_device_is_expected_to_be_like_its_family_or_all_gpus_where_that_is_small():
    own = RUNS[RUNS.device.isin(["H100", "H200"])]
    found = published_mfu(DEVICES["H100-PCIe"])
    assert found.median == own.mfu.median() and found.least == own.parameters.min()
    assert found.evidence == f"{len(own)} runs on H100, H200, 0.12 to 71 billion parameters"
    assert found.low < found.median < found.high
    assert published_mfu(DEVICES["B200"]) == published_mfu(DEVICES["L4"])
    assert published_mfu(DEVICES["v5e"]).evidence.startswith("6 runs on v6e, v5p, ")
    assert sum(RUNS.device == "RTX4090") < ENOUGH


def test_runs_are_predicted_by_those_of_other_sources_as_docs_planning_says():
    errors, within = [], []
    for run in RUNS.to_dict("records"):
        found = published_mfu(DEVICES[run["device"]], RUNS[RUNS.by != run["by"]])
        errors.append(abs(run["mfu"] / found.median - 1))
        within.append(found.low <= run["mfu"] <= found.high)
    assert np.median(errors) == pytest.approx(0.21, abs=0.01)
    assert np.mean(within) == pytest.approx(0.64, abs=0.01)
