"""Chapter 9: the loss by learning rate at several widths, as usual and in µP, with AdamW and with Muon."""

import matplotlib
import numpy as np

from docs.figures import ORANGE, save, ticks
from experiments.record import RESULTS, Record

WIDTHS = (64, 128, 256, 512)
BASE = 256  # at this width a model in µP is an ordinary one
OPTIMIZERS = {
    "AdamW": ("learning_rate", (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)),
    "Muon": ("learning_rate_muon", (2e-3, 4e-3, 8e-3, 16e-3, 32e-3, 64e-3)),
}


def losses(record: Record, rates, name: str) -> dict[float, list[float]]:
    """Return the final losses by rate, of those that were tried, in sets of this name and a rate."""
    labels = {rate: f"{name}{rate:g}" for rate in rates}
    return {rate: list(record.losses(x).dropna()) for rate, x in labels.items() if x in record.sets}


def draw_rates(axes, record: Record, rates, lines: dict[str, tuple[str, str]], **legend) -> None:
    """Draw lines of these sets and colors through mean losses, a dot for each seed, a star at the lowest."""
    for label, (name, color) in lines.items():
        found = losses(record, rates, name)
        means = {rate: np.mean(seeds) for rate, seeds in found.items()}
        axes.plot(list(means), list(means.values()), lw=1.2, color=color, label=label)
        for rate, seeds in found.items():
            axes.plot([rate] * len(seeds), seeds, "o", ms=3, color=color, alpha=0.6)
        lowest = min(means, key=lambda rate: means[rate])
        axes.plot(lowest, means[lowest], "*", ms=10, color=ORANGE)
    axes.set(xscale="log", xlabel="learning rate", ylabel="val loss (nats)")
    ticks(axes.xaxis, rates)
    axes.legend(**legend)


def name_of(kind: str, width: int) -> str:
    """Return the name of the sets of a width, standard or in µP."""
    return f"{'standard' if width == BASE else kind}, width {width}, "


def stars() -> str:
    """Say for each width which rate has the lowest mean, and which loss that is."""
    lines = []
    for optimizer, (file, rates) in OPTIMIZERS.items():
        record = Record(RESULTS / f"{file}.json")
        for kind in ("standard", "µP"):
            row = f"{optimizer:5} {kind:8}"
            for width in WIDTHS:
                found = losses(record, rates, name_of(kind, width))
                loss, rate = min((np.mean(seeds), rate) for rate, seeds in found.items())
                row += f"  {width}: {rate:<6g} ({loss:.2f})"
            lines.append(row)
    return "\n".join(lines)


def draw(axes) -> None:
    shades = dict(zip(WIDTHS, matplotlib.colormaps["Blues"](np.linspace(0.4, 1, len(WIDTHS))), strict=True))
    for row, (optimizer, (file, rates)) in zip(axes, OPTIMIZERS.items(), strict=True):
        record = Record(RESULTS / f"{file}.json")
        for one, kind in zip(row, ("standard", "µP"), strict=True):
            lines = {str(width): (name_of(kind, width), shades[width]) for width in WIDTHS}
            draw_rates(one, record, rates, lines, title="width", fontsize="small")
            one.tick_params("x", labelsize=8)
            one.set_title(f"{optimizer}, {kind}")


if __name__ == "__main__":
    save("widths", draw, width=8.4, height=6.4, nrows=2, ncols=2, sharey="row")
