"""Chapter 9: the loss by learning rate at several widths, as usual and in µP, with AdamW and with Muon.

    python -m docs.figures.widths

Drawn from experiments/results/; python -m experiments.compare experiments/learning_rate.toml trains what is
missing there.
"""

import matplotlib
import numpy as np

from common.errors import UserError
from docs.figures import ORANGE, save
from experiments.record import RESULTS, Record

WIDTHS = (64, 128, 256, 512)
BASE = 256  # at this width a model in µP is an ordinary one
RATES = {
    "learning_rate": (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3),
    "learning_rate_muon": (2e-3, 4e-3, 8e-3, 16e-3, 32e-3, 64e-3),
}


def losses(record: Record, labels: dict[float, str]) -> dict[float, list[float]]:
    """Return the final losses by rate, of the rates with two seeds or more. Raises UserError if none has."""
    tried = {rate: list(record.losses(x).dropna()) for rate, x in labels.items() if x in record.sets}
    found = {rate: seeds for rate, seeds in tried.items() if len(seeds) > 1}
    if not found:
        raise UserError(f"{record.path}: no two seeds of {', '.join(labels.values())}")
    return found


def draw_line(axes, found: dict[float, list[float]], label: str, color, star) -> None:
    """Draw losses by rate: a line through the means, a dot for each seed, a star at the lowest mean."""
    means = {rate: np.mean(seeds) for rate, seeds in found.items()}
    axes.plot(list(means), list(means.values()), lw=1.2, color=color, label=label)
    for rate, seeds in found.items():
        axes.plot([rate] * len(seeds), seeds, "o", ms=3, color=color, alpha=0.6)
    lowest = min(means, key=lambda rate: means[rate])
    axes.plot(lowest, means[lowest], "*", ms=10, color=star)


def stars() -> str:
    """Say for each width which rate has the lowest mean, and which loss that is."""
    lines = []
    for optimizer, (file, rates) in zip(("AdamW", "Muon"), RATES.items(), strict=True):
        record = Record(RESULTS / f"{file}.json")
        for kind in ("standard", "µP"):
            row = f"{optimizer:5} {kind:8}"
            for width in WIDTHS:
                name = f"{'standard' if width == BASE else kind}, width {width}"
                found = losses(record, {rate: f"{name}, {rate:g}" for rate in rates})
                loss, rate = min((np.mean(seeds), rate) for rate, seeds in found.items())
                row += f"  {width}: {rate:<6g} ({loss:.2f})"
            lines.append(row)
    return "\n".join(lines)


def draw(axes) -> None:
    shades = dict(zip(WIDTHS, matplotlib.colormaps["Blues"](np.linspace(0.4, 1, len(WIDTHS))), strict=True))
    for row, optimizer, (file, rates) in zip(axes, ("adamw", "muon"), RATES.items(), strict=True):
        record = Record(RESULTS / f"{file}.json")
        for one, kind in zip(row, ("standard", "µP"), strict=True):
            for width in WIDTHS:
                name = f"{'standard' if width == BASE else kind}, width {width}"
                found = losses(record, {rate: f"{name}, {rate:g}" for rate in rates})
                draw_line(one, found, str(width), shades[width], ORANGE)
            one.set(xscale="log", xlabel="learning rate", ylabel="val loss (nats)")
            one.set_xticks(rates, [f"{rate:g}" for rate in rates], minor=False, fontsize=8)
            one.minorticks_off()
            one.set_title(f"{optimizer}, {kind}")
            one.legend(title="width", fontsize="small")


if __name__ == "__main__":
    save("widths", draw, width=8.4, height=6.4, nrows=2, ncols=2, sharey="row")
