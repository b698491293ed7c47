"""Chapter 7: the loss at high learning rates, and what three remedies do to it.

    python -m docs.figures.stability

Drawn from experiments/results/; python -m experiments.compare experiments/stability.toml trains what is
missing there.
"""

from docs.figures import BLUE, GREEN, GREY, ORANGE, save
from docs.figures.widths import draw_line, losses
from experiments.record import RESULTS, Record

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
COLORS = {"without": GREY, "qk_norm": BLUE, "softcap": "#b9a3d9", "z-loss": GREEN, "all three": "#111827"}


def draw(axes) -> None:
    record = Record(RESULTS / "stability.json")
    for name, color in COLORS.items():
        draw_line(axes, losses(record, {rate: f"{name}, {rate:g}" for rate in RATES}), name, color, ORANGE)
    axes.set(xscale="log", xlabel="learning rate", ylabel="val loss (nats)")
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES], minor=False)
    axes.minorticks_off()
    axes.legend(loc="upper left", fontsize="small")


if __name__ == "__main__":
    save("stability", draw)
