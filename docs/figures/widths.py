"""Chapter 9: the loss by learning rate at several widths, as usual and in µP, with AdamW and with Muon.

    python -m docs.figures.widths

Drawn from experiments/results/; python -m experiments.learning_rate trains what is missing there.
"""

import matplotlib
import numpy as np

from config.command_line import UserError
from docs.figures import ORANGE, save
from experiments.learning_rate import EXPERIMENTS, KINDS, RATES, WIDTHS, label, rates
from experiments.record import Record


def losses(record: Record, labels: dict[float, str]) -> dict[float, list[float]]:
    """Return the final losses by rate, of the rates that were tried with two seeds or more."""
    found = {rate: list(record.losses(name).dropna()) for rate, name in labels.items()}
    return {rate: seeds for rate, seeds in found.items() if len(seeds) > 1}


def draw_line(axes, found: dict[float, list[float]], label: str, color, star) -> None:
    """Draw losses by rate: a line through the means, a dot for each seed, a star at the lowest mean."""
    means = {rate: np.mean(seeds) for rate, seeds in found.items()}
    axes.plot(list(means), list(means.values()), lw=1.2, color=color, label=label)
    for rate, seeds in found.items():
        axes.plot([rate] * len(seeds), seeds, "o", ms=3, color=color, alpha=0.6)
    lowest = min(means, key=lambda rate: means[rate])
    axes.plot(lowest, means[lowest], "*", ms=10, color=star)


def draw(axes) -> None:
    shades = dict(zip(WIDTHS, matplotlib.colormaps["Blues"](np.linspace(0.4, 1, len(WIDTHS))), strict=True))
    for row, experiment, (optimizer, all_rates) in zip(axes, EXPERIMENTS, RATES.items(), strict=True):
        record = Record(experiment)
        for one, kind in zip(row, KINDS, strict=True):
            for width in WIDTHS:
                found = losses(record, {rate: label(kind, width, rate) for rate in rates(optimizer, width)})
                if found:
                    draw_line(one, found, str(width), shades[width], ORANGE)
            if not one.lines:
                raise UserError(
                    f"{experiment.name}: no results: python -m experiments.learning_rate makes them"
                )
            one.set(xscale="log", xlabel="learning rate", ylabel="val loss (nats)")
            one.set_xticks(all_rates, [f"{rate:g}" for rate in all_rates], minor=False, fontsize=8)
            one.minorticks_off()
            one.set_title(f"{optimizer}, {kind}")
            one.legend(title="width", fontsize="small")


if __name__ == "__main__":
    save("widths", draw, width=8.4, height=6.4, nrows=2, ncols=2, sharey="row")
