"""Chapter 7: the loss at high learning rates, and what three remedies do to it.

    python -m docs.figures.stability

Drawn from experiments/results/; python -m experiments.stability trains what is missing there.
"""

from docs.figures import BLUE, GREEN, GREY, ORANGE, save
from docs.figures.widths import draw_line, losses
from experiments.record import Record
from experiments.stability import EXPERIMENTS, LINES, RATES

COLORS = dict(zip(LINES, (GREY, BLUE, "#b9a3d9", GREEN, "#111827"), strict=True))


def draw(axes) -> None:
    [experiment] = EXPERIMENTS
    record = Record(experiment)
    for name, labels in LINES.items():
        draw_line(axes, losses(record, dict(zip(RATES, labels, strict=True))), name, COLORS[name], ORANGE)
    axes.set(xscale="log", xlabel="learning rate", ylabel="val loss (nats)")
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES], minor=False)
    axes.minorticks_off()
    axes.legend(loc="upper left", fontsize="small")


if __name__ == "__main__":
    save("stability", draw)
