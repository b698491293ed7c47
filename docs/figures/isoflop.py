"""Chapter 9: which size of model makes the most of a budget of FLOPs, and how that size grows.

    python -m docs.figures.isoflop

Drawn from experiments/results/; python -m experiments.isoflop trains what is missing there.
"""

import matplotlib
import numpy as np

from config.command_line import UserError
from docs.figures import BLUE, GREY, ORANGE, save
from experiments.isoflop import CHINCHILLA, EXPERIMENTS, WIDTHS, complete, exponent, flops, minima, parameters
from experiments.record import Record


def draw(axes) -> None:
    [experiment] = EXPERIMENTS
    losses = complete(Record(experiment))
    if len(losses) < 2:
        raise UserError(
            "isoflop: results of fewer than two budgets: python -m experiments.isoflop makes them"
        )
    best, (valleys, growth) = minima(losses), axes
    shades = matplotlib.colormaps["Blues"](np.linspace(0.45, 1, len(losses)))
    for color, (budget, found) in zip(shades, losses.items(), strict=True):
        sizes, means = np.array([parameters(width) for width in WIDTHS[budget]]), np.mean(found, axis=1)
        parabola = np.polyfit(np.log(sizes), means, 2)
        line = np.geomspace(sizes[0], sizes[-1], 50)
        for size, seeds in zip(sizes, found, strict=True):
            valleys.plot([size] * len(seeds), seeds, "o", ms=3, color=color, alpha=0.6)
        valleys.plot(line, np.polyval(parabola, np.log(line)), lw=1.2, color=color, label=flops(budget))
        valleys.plot(best[budget], np.polyval(parabola, np.log(best[budget])), "*", ms=9, color=ORANGE)
    valleys.plot([], [], "*", ms=9, color=ORANGE, label="minimum")
    valleys.set(xscale="log", xlabel="parameters", ylabel="val loss (nats)")
    valleys.set_xticks([2e4, 1e5, 5e5, 2.5e6], ["20k", "100k", "500k", "2.5M"])
    valleys.set_title("five sizes at each budget")
    valleys.legend(fontsize="small", loc="upper right")

    budgets, sizes = np.array(list(best)), np.array(list(best.values()))
    slope = exponent(best)
    centre = np.exp(np.log(budgets).mean()), np.exp(np.log(sizes).mean())
    for name, power, color in (("ours", slope, BLUE), ("Chinchilla's slope", CHINCHILLA[0], GREY)):
        line = centre[1] * (budgets / centre[0]) ** power
        growth.plot(budgets, line, lw=1.2, color=color, label=f"{name}: budget^{power:.2f}")
    growth.plot(budgets, sizes, "*", ms=9, color=ORANGE)
    growth.set(xscale="log", yscale="log", xlabel="budget (FLOPs)", ylabel="best number of parameters")
    growth.set_xticks(budgets, [flops(budget).removesuffix(" FLOPs") for budget in budgets])
    growth.set_yticks([5e4, 1e5, 2e5, 4e5, 8e5, 1.6e6], ["50k", "100k", "200k", "400k", "800k", "1.6M"])
    growth.set_title("the best size by budget")
    growth.legend(fontsize="small")
    for one in axes:
        one.minorticks_off()


if __name__ == "__main__":
    save("isoflop", draw, width=8.4, height=3.6, ncols=2)
