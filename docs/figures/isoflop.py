"""Chapter 9: which size of model makes the most of a budget of FLOPs, and how that size grows.

    python -m docs.figures.isoflop

Drawn from experiments/results/; python -m experiments.compare experiments/isoflop.toml trains what is missing
there. A parabola through the losses of a budget, over the logarithm of the parameters, has its minimum at the
best size, which grows as a power of the budget (Chinchilla's approach 2, arXiv:2203.15556).
"""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

from docs.figures import BLUE, GREY, ORANGE, save
from experiments.record import RESULTS, Record

SYMBOLS = 96  # in the text
CHINCHILLA = 0.49  # the exponent, from 0.462 to 0.534 (10th and 90th percentiles): table 2, approach 2
DRAWS = 1000  # of the seeds, for the errors


def read(path: Path = RESULTS / "isoflop.json") -> pd.DataFrame:
    """Return a row for each size, of the budgets all of whose sizes have two seeds."""
    record, rows = Record(path), []
    for label, entry in record.sets.items():
        x = entry["options"]
        row = {
            "budget": float(label.split()[0]),  # of "3e11 FLOPs, width 16"
            "parameters": 12 * x["n_layer"] * x["n_embd"] ** 2 + SYMBOLS * x["n_embd"],
            "tokens": x["max_iters"] * x["batch_size"] * x["block_size"],
            "losses": record.losses(label).dropna().to_numpy(),
        }
        rows.append(row)
    found = pd.DataFrame(rows).sort_values(["budget", "parameters"], ignore_index=True)
    return found.groupby("budget").filter(lambda sizes: sizes.losses.map(len).min() > 1)


def minima(sizes: pd.DataFrame, losses) -> np.ndarray:
    """Return the logarithm of the best size at each budget, by a loss for each row, or by draws of it."""
    logs, losses = np.log(sizes.parameters.to_numpy()), np.stack(losses)
    return np.array([lowest(logs[rows], losses[rows]) for rows in sizes.groupby("budget").indices.values()])


def lowest(log_size: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Return where the parabola through the losses has its minimum; nan where it has none."""
    square, slope, _ = np.polyfit(log_size, loss, 2)
    return np.where(square > 0, -slope / (2 * square), np.nan)


def exponent(budgets: np.ndarray, log_best: np.ndarray) -> np.ndarray:
    """Return a of best size ~ budget^a, by least squares."""
    x = np.log(budgets) - np.log(budgets).mean()
    return x @ log_best / (x @ x)


def redraw(losses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw as many losses with replacement. Return the means of all draws, spread as new seeds' would be."""
    mean, n = losses.mean(), len(losses)
    return mean + (rng.choice(losses, (n, DRAWS)).mean(axis=0) - mean) * np.sqrt(n / (n - 1))


def findings(sizes: pd.DataFrame) -> str:
    """Say what is best at each budget, and how it grows."""
    budgets, log_best = sizes.budget.unique(), minima(sizes, sizes.losses.map(np.mean))
    lines, rng = [], np.random.default_rng(0)
    for budget, best in zip(budgets, log_best, strict=True):
        x = sizes[sizes.budget == budget]
        tokens = np.exp(np.interp(best, np.log(x.parameters), np.log(x.tokens)) - best)
        lines.append(
            f"{flops(budget)}: best at {np.exp(best):9,.0f} parameters, {tokens:2.0f} tokens for each"
        )
    drawn = exponent(budgets, minima(sizes, [redraw(losses, rng) for losses in sizes.losses]))
    low, high = np.nanquantile(drawn, (0.1, 0.9))
    slope = exponent(budgets, log_best)
    return "\n".join(
        [*lines, f"best size ~ budget^{slope:.2f} ({low:.2f} to {high:.2f} in 80% of {DRAWS} draws)"]
    )


def flops(budget: float) -> str:
    return f"{budget:.0e} FLOPs".replace("e+", "e")


def draw(axes) -> None:
    sizes = read()
    means, (valleys, growth) = sizes.losses.map(np.mean), axes
    budgets, log_best = sizes.budget.unique(), minima(sizes, means)
    shades = matplotlib.colormaps["Blues"](np.linspace(0.45, 1, len(budgets)))
    for color, budget, best in zip(shades, budgets, log_best, strict=True):
        x = sizes[sizes.budget == budget]
        parabola = np.polyfit(np.log(x.parameters), means[x.index], 2)
        line = np.geomspace(x.parameters.min(), x.parameters.max(), 50)
        for size, seeds in zip(x.parameters, x.losses, strict=True):
            valleys.plot([size] * len(seeds), seeds, "o", ms=3, color=color, alpha=0.6)
        valleys.plot(line, np.polyval(parabola, np.log(line)), lw=1.2, color=color, label=flops(budget))
        valleys.plot(np.exp(best), np.polyval(parabola, best), "*", ms=9, color=ORANGE)
    valleys.plot([], [], "*", ms=9, color=ORANGE, label="minimum")
    valleys.set(xscale="log", xlabel="parameters", ylabel="val loss (nats)")
    valleys.set_xticks([2e4, 1e5, 5e5, 2.5e6], ["20k", "100k", "500k", "2.5M"])
    valleys.set_title("five sizes at each budget")
    valleys.legend(fontsize="small", loc="upper right")

    powers = {"ours": exponent(budgets, log_best), "Chinchilla's slope": CHINCHILLA}
    for (name, power), color in zip(powers.items(), (BLUE, GREY), strict=True):
        line = np.exp(log_best.mean() + power * (np.log(budgets) - np.log(budgets).mean()))
        growth.plot(budgets, line, lw=1.2, color=color, label=f"{name}: budget^{power:.2f}")
    growth.plot(budgets, np.exp(log_best), "*", ms=9, color=ORANGE)
    growth.set(xscale="log", yscale="log", xlabel="budget (FLOPs)", ylabel="best number of parameters")
    growth.set_xticks(budgets, [flops(budget).removesuffix(" FLOPs") for budget in budgets])
    growth.set_yticks([5e4, 1e5, 2e5, 4e5, 8e5, 1.6e6], ["50k", "100k", "200k", "400k", "800k", "1.6M"])
    growth.set_title("the best size by budget")
    growth.legend(fontsize="small")
    for one in axes:
        one.minorticks_off()
    print(findings(sizes))


if __name__ == "__main__":
    save("isoflop", draw, width=8.4, height=3.6, ncols=2)
