"""Chapter 8: the loss by learning rate of four optimizers, each at its own four rates.

    python -m docs.figures.best_rates

Drawn from experiments/results/; python -m experiments.optimizers trains what is missing there.
"""

import numpy as np

from config.command_line import UserError
from docs.figures import BLUE, GREEN, GREY, ORANGE, save
from docs.figures.widths import losses
from experiments.optimizers import EXPERIMENTS, RATES
from experiments.record import read_record
from experiments.runner import RESULTS

COLORS = {"adamw": GREY, "muon": BLUE, "normuon": GREEN, "lion": ORANGE}


def draw(axes) -> None:
    (experiment,) = EXPERIMENTS
    record = read_record(RESULTS / f"{experiment.name}.json")
    for optimizer, rates in RATES.items():
        found = losses(experiment, record, {rate: f"{optimizer} {rate:g}" for rate in rates})
        if not found:
            raise UserError(f"no results of {optimizer}: python -m experiments.optimizers makes them")
        means = {rate: np.mean(seeds) for rate, seeds in found.items()}
        color = COLORS[optimizer]
        axes.plot(list(means), list(means.values()), lw=1.2, color=color, label=optimizer)
        for rate, seeds in found.items():
            axes.plot([rate] * len(seeds), seeds, "o", ms=3, color=color, alpha=0.6)
        lowest = min(means, key=lambda rate: means[rate])
        axes.plot(lowest, means[lowest], "*", ms=11, color=color)
    ticks = (5e-4, *RATES["adamw"], 16e-3)
    axes.set(xscale="log", xlabel="learning rate", ylabel="val loss (nats)")
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks], minor=False)
    axes.minorticks_off()
    axes.legend(loc="upper right")


if __name__ == "__main__":
    save("best_rates", draw, height=3.4)
