"""The programs of experiments/: their option sets can be trained, and what they make of results is right."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

from config.options import Options
from experiments import batch_size, coordinate_check, isoflop, stability
from experiments.record import Record, machine
from experiments.report import write_report
from runs.metrics import flops_per_token
from tests.experiments.test_runner import recorded
from tests.helpers import ROOT
from training.state import model_config

MODULES = {
    path.stem: importlib.import_module(f"experiments.{path.stem}")
    for path in (ROOT / "experiments").glob("*.py")
}
EXPERIMENTS = [
    (name, experiment)
    for name, module in MODULES.items()
    for experiment in getattr(module, "EXPERIMENTS", ())
]


@pytest.mark.parametrize("name, experiment", EXPERIMENTS, ids=[x.name for _, x in EXPERIMENTS])
def test_every_option_set_is_of_train_py_and_unlike_the_others(name, experiment):
    assert (experiment.program or experiment.name) == name and experiment.seeds > 1
    record = Record(experiment)
    assert all(options["lr_decay_iters"] == options["max_iters"] for options in record.options.values())
    assert all([*record.options.values()].count(options) == 1 for options in record.options.values())
    for label in experiment.sets:
        model_config(replace(Options(), **record.options[label]), 65, None)  # raises for a bad shape
    labels = [label for line in experiment.lines.values() for label in line]
    assert record.options.keys() >= set(labels)  # also of sets that were taken out, which have results:
    assert all(record.losses(label).count() > 1 for label in record.taken_out)


def test_results_begun_anew_lack_the_sets_that_were_taken_out(tmp_path):
    write_report(recorded(stability.EXPERIMENTS[0], tmp_path, {"qk_norm, 0.001": [2.0, 2.0]}))
    text = (tmp_path / "stability.md").read_text()
    assert "- qk_norm: 2.0000 ± 0.0000; not run; not run; not run.\n- softcap: not run" in text
    assert "(tried, and taken out)" not in text


@pytest.mark.parametrize("budget, width", [(1e12, 24), (1e13, 96), (1e13, 192)])
def test_an_isoflop_run_takes_its_budget(budget, width):
    options = replace(Options(), **isoflop.EXPERIMENTS[0].options(isoflop.label(budget, width)))
    tokens = options.batch_size * options.block_size * options.gradient_accumulation_steps * options.max_iters
    config = model_config(options, isoflop.SYMBOLS, None)
    assert flops_per_token(config, options.block_size) * tokens == pytest.approx(budget, rel=0.01)


def test_isoflop_finds_the_exponent_of_parabolas(tmp_path):
    """Losses whose minima lie at sizes that grow as budget^0.6."""
    rng, runs = np.random.default_rng(0), {}
    for budget, widths in isoflop.WIDTHS.items():
        best = np.log(200_000 * (budget / 3e12) ** 0.6)
        for width in widths:
            loss = 1.5 + 0.1 * (np.log(isoflop.parameters(width)) - best) ** 2
            runs[isoflop.label(budget, width)] = (loss + 1e-4 * rng.standard_normal(3)).tolist()
    record = recorded(isoflop.EXPERIMENTS[0], tmp_path, runs)
    found = isoflop.minima(isoflop.complete(record))
    assert found[3e12] == pytest.approx(200_000, rel=0.01)
    assert isoflop.exponent(found) == pytest.approx(0.6, abs=0.005)
    assert "The best size grows as budget^0.60 (0.60 to 0.60" in isoflop.findings(record)[-1]
    first = next(iter(runs))  # a budget of which a size has one seed, or none, has no minimum
    for losses in (runs[first][:1], []):
        record = recorded(isoflop.EXPERIMENTS[0], tmp_path / str(losses), runs | {first: losses})
        assert list(isoflop.complete(record)) == list(isoflop.WIDTHS)[1:]


def test_tokens_that_a_size_reads_are_those_of_its_steps():
    """At a width of the budget they are its steps' own; between two, 24 and 32, nearly those of 28."""
    for width, near in ((24, 1e-9), (28, 0.01)):
        tokens = isoflop.steps(1e12, width) * isoflop.ROWS * isoflop.LENGTH
        found = isoflop.tokens_read(1e12, isoflop.parameters(width))
        assert found == pytest.approx(tokens, rel=near)


def test_losses_that_only_fall_have_no_lowest_size():
    assert np.isnan(isoflop.lowest(np.array([1.0, 2.0, 3.0]), [3.0, 2.5, 1.0]))


def test_the_critical_batch_is_that_of_the_law():
    rows = np.array([4, 8, 16, 32, 64, 128])
    fewest, critical = batch_size.fit(rows, 300 * (1 + 20 / rows))
    assert (fewest, critical) == pytest.approx((300, 20))


def test_a_target_is_reached_between_two_evaluations_by_all_seeds_or_the_batch_is_left_out(tmp_path):
    """From a loss of 4 before the first step; the target, 2.2, is nine tenths of the way to 2."""
    losses = {"batch 4": [2.0, 2.0], "batch 8": [2.0, 3.0]}
    found = batch_size.reached(recorded(batch_size.EXPERIMENTS[0], tmp_path, losses))
    assert found.index.tolist() == [4] and found.loc[4].tolist() == pytest.approx([5.4, 5.4])


def test_growth_is_of_the_widest_by_the_narrowest_after_a_step():
    """Logits after the last step are 1, but the widest model's, which are as large as its seed."""
    widths, seeds = len(coordinate_check.WIDTHS), coordinate_check.SEEDS
    sizes = np.ones((2, widths, seeds, 1 + coordinate_check.STEPS, len(coordinate_check.PARTS)))
    sizes[0, -1, :, -1, -1] = ratios = np.arange(1, 1 + seeds)
    table = coordinate_check.table(sizes, machine())
    grown = f"| standard, after 10 steps at 0.002 | {'1.00 ± 0.00 | ' * 3}"
    assert f"{grown}{np.mean(ratios):.2f} ± {np.std(ratios, ddof=1):.2f} |" in table
    assert table.count("1.00 ± 0.00") == 15
