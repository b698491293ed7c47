"""Chapter 8: the loss by learning rate of three optimizers, each at its own three rates.

    python -m docs.figures.best_rates

Drawn from experiments/results/; python -m experiments.optimizers trains what is missing there.
"""

from config.command_line import UserError
from docs.figures import BLUE, GREEN, GREY, save
from docs.figures.widths import draw_line, losses
from experiments.optimizers import EXPERIMENTS, RATES
from experiments.record import Record

COLORS = {"adamw": GREY, "muon": BLUE, "normuon": GREEN}


def draw(axes) -> None:
    (experiment,) = EXPERIMENTS
    record = Record(experiment)
    for optimizer, rates in RATES.items():
        found = losses(record, {rate: f"{optimizer} {rate:g}" for rate in rates})
        if not found:
            raise UserError(f"no results of {optimizer}: python -m experiments.optimizers makes them")
        draw_line(axes, found, optimizer, COLORS[optimizer], COLORS[optimizer])
    ticks = (*RATES["adamw"], 16e-3)
    axes.set(xscale="log", xlabel="learning rate", ylabel="val loss (nats)")
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks], minor=False)
    axes.minorticks_off()
    axes.legend(loc="upper right")


if __name__ == "__main__":
    save("best_rates", draw, height=3.4)
