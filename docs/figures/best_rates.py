"""Chapter 8: the loss by learning rate of three optimizers, each at its own three rates.

    python -m docs.figures.best_rates

Drawn from experiments/results/; python -m experiments.compare experiments/optimizers.toml trains what is
missing there.
"""

from docs.figures import BLUE, GREEN, GREY, save
from docs.figures.widths import draw_line, losses
from experiments.record import RESULTS, Record

COLORS = {"adamw": GREY, "muon": BLUE, "normuon": GREEN}
RATES = (2e-3, 4e-3, 8e-3, 16e-3)  # AdamW has the first three, the others the last three


def draw(axes) -> None:
    record = Record(RESULTS / "optimizers.json")
    for name, color in COLORS.items():
        draw_line(axes, losses(record, {rate: f"{name} {rate:g}" for rate in RATES}), name, color, color)
    axes.set(xscale="log", xlabel="learning rate", ylabel="val loss (nats)")
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES], minor=False)
    axes.minorticks_off()
    axes.legend(loc="upper right")


if __name__ == "__main__":
    save("best_rates", draw, height=3.4)
