"""Figures find in results the law by which their losses were made."""

import json
import re

import numpy as np
import pytest

from config.options import Options
from docs.figures import batch_size, isoflop, ladder
from experiments.record import RESULTS, Record
from runs.metrics import flops_per_token
from tests.experiments.conftest import result
from training.state import model_config

SETS = Record(RESULTS / "isoflop.json").sets


def ended(seed, loss, **more):
    return json.loads(result(seed, loss, **more).to_json())


def write(path, sets):
    path.write_text(json.dumps({"sets": sets}))
    return path


def test_an_isoflop_run_has_the_parameters_and_takes_the_budget_that_the_figure_says():
    entries = [*zip(isoflop.read().itertuples(), SETS.values(), strict=True)]
    for row, entry in entries[::6]:
        options = Options(**entry.options)
        config = model_config(options, isoflop.SYMBOLS, None)
        flops = flops_per_token(config, options.block_size)
        assert flops * row.tokens == pytest.approx(row.budget, rel=0.01)
        assert isoflop.tokens(row.budget, row.parameters) == pytest.approx(row.tokens, rel=0.01)
        attention = 12 * config.n_layer * config.block_size * config.n_embd
        assert flops == 6 * row.parameters + attention


def test_isoflop_finds_the_exponent_of_parabolas(tmp_path):
    """Losses whose minima lie at sizes that grow as budget^0.6."""
    rng, sizes, sets = np.random.default_rng(0), isoflop.read(), {}
    for (label, entry), (_, row) in zip(SETS.items(), sizes.iterrows(), strict=True):
        best = 200_000 * (row.budget / 3e12) ** 0.6
        loss = 1.5 + 0.1 * np.log(row.parameters / best) ** 2
        runs = [ended(seed, loss + 1e-4 * rng.standard_normal()) for seed in (1, 2, 3)]
        sets[label] = {"options": entry.options, "runs": runs}
    path = write(tmp_path / "isoflop.json", sets)
    _, first, *lines = isoflop.findings(isoflop.read(path)).splitlines()
    fitted = [number for line in lines[5:-1] for number in re.findall(r"0\.\d\d\b", line)]
    assert fitted == ["0.60"] * 12  # whatever seed, budget or size is left out
    best = 200_000 * 0.1**0.6
    budget, found, trained, by_rule, off = re.split(r"  +", first)
    assert budget == "3e11 FLOPs" and float(found.replace(",", "")) == pytest.approx(best, rel=0.01)
    assert float(off) == pytest.approx(0.1 * np.log(4) ** 2, abs=0.002)
    x = sizes[sizes.budget == 3e11]
    above = np.argmax(x.parameters > best)  # the tokens lie between those of the sizes around it
    most, least = (x.tokens.iloc[i] / best for i in (above - 1, above))
    assert least < float(trained) < most
    assert float(by_rule) == pytest.approx(3e11 / 6 / best**2, rel=0.02)
    sets["3e11 FLOPs, width 16"]["runs"][1:] = []  # one seed has no spread: this budget has no minimum
    assert isoflop.read(write(path, sets)).budget.min() == 1e12


def test_the_ladder_compares_with_the_row_above_and_brackets_what_may_be_0(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder, "RESULTS", tmp_path)
    monkeypatch.setattr(ladder, "sets", lambda name: [*losses])
    losses = {"nanoGPT": (2.0, 2.1), "+ rate x4": (1.5, 1.61), "+ muon": (1.4, 1.72)}
    runs = {x: [ended(i, loss) for i, loss in enumerate(y)] for x, y in losses.items()}
    write(tmp_path / "ladder_book_up.json", {x: {"options": {}, "runs": y} for x, y in runs.items()})
    _, rate, muon = ladder.findings({"book": "ladder_book_up"}).splitlines()
    assert rate.split() == ["+", "rate", "x4", "-0.4950", "±", "0.0635"]
    assert muon.split()[-3:] == ["(+0.0050", "±", "1.3342)"]


def test_the_critical_batch_is_that_of_the_law():
    rows = np.array([4, 8, 16, 32, 64, 128])
    fewest, critical = batch_size.fit(rows, 300 * (1 + 20 / rows))
    assert (fewest, critical) == pytest.approx((300, 20))


def test_a_target_is_reached_between_two_evaluations_by_all_seeds_or_the_batch_is_left_out(tmp_path):
    """From a loss of 4 before the first step; the target, 2.2, is nine tenths of the way to 2."""

    def entry(rows, *losses):
        runs = [ended(i, x, evaluations=[(0, 4.0, 4.0), (6, x, x)]) for i, x in enumerate(losses)]
        return {"options": {"batch_size": rows}, "runs": runs}

    sets = {"batch 4": entry(4, 2.0, 2.0), "batch 8": entry(8, 2.0, 3.0), "batch 16": entry(16, 2.0)}
    found = batch_size.reached(Record(write(tmp_path / "batch_size.json", sets)))
    assert found.index.tolist() == [4] and found.loc[4].tolist() == pytest.approx([5.4, 5.4])
