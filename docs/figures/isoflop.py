"""Chapter 9: which size of model makes the most of a budget of FLOPs, and how that size grows.

A parabola through the losses of a budget, over the logarithm of the parameters, has its minimum at the
best size, which grows as a power of the budget (Chinchilla's approach 2, arXiv:2203.15556).
"""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from scipy import stats

from docs.figures import BLUE, GREY, ORANGE, save, ticks
from experiments.record import RESULTS, Record

SYMBOLS, LAYERS, CONTEXT = 96, 4, 64  # in the text; in each model; tokens in a row
CHINCHILLA = 0.49  # the exponent, from 0.462 to 0.534 (10th and 90th percentiles): table 2, approach 2
DRAWS = 1000  # of the seeds, for the errors


def read(path: Path = RESULTS / "isoflop.json") -> pd.DataFrame:
    """Return a row for each size, of the budgets all of whose sizes have two seeds."""
    record, rows = Record(path), []
    for label, entry in record.sets.items():
        x: dict[str, Any] = entry.options
        row = {
            "budget": float(label.split()[0]),  # of "3e11 FLOPs, width 16"
            "width": x["n_embd"],
            "parameters": parameters(x["n_embd"]),
            "tokens": x["max_iters"] * x["batch_size"] * x["block_size"],
            "losses": record.losses(label).dropna().to_numpy(),
        }
        rows.append(row)
    found = pd.DataFrame(rows).sort_values(["budget", "parameters"], ignore_index=True)
    return found.groupby("budget").filter(lambda sizes: sizes.losses.map(len).min() > 1)


def parameters(width: float) -> float:
    """Return the weights of the blocks' matrices and of the embedding, which is the lm_head as well."""
    return 12 * LAYERS * width**2 + SYMBOLS * width


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
    """Say what is best at each budget, how it grows, and how far that may be off."""
    budgets, log_best = sizes.budget.unique(), minima(sizes, sizes.losses.map(np.mean))
    lines = ["    budget     best N   D/N  C/6N²  4 times off  exponent"]
    for i, (budget, best) in enumerate(zip(budgets, log_best, strict=True)):
        of = sizes[sizes.budget == budget]
        off = np.polyfit(np.log(of.parameters), of.losses.map(np.mean), 2)[0] * np.log(4) ** 2
        n = np.exp(best)
        ratios = f"{tokens(budget, n) / n:4.1f}  {budget / 6 / n**2:5.1f}"
        grown = f"{exponent(budgets[i - 1 : i + 1], log_best[i - 1 : i + 1]):10.2f}" if i else ""
        lines.append(f"{flops(budget)}  {n:9,.0f}  {ratios}  {off:+11.3f}{grown}")
    return "\n".join([*lines, *doubts(sizes)])


def doubts(sizes: pd.DataFrame) -> list[str]:
    """Fit the exponent again: to other seeds, budgets, sizes, and to another count of parameters."""
    budgets, means = sizes.budget.unique(), sizes.losses.map(np.mean)
    log_best, rng = minima(sizes, means), np.random.default_rng(0)
    drawn = exponent(budgets, minima(sizes, [redraw(losses, rng) for losses in sizes.losses]))
    low, high = np.nanquantile(drawn, (0.1, 0.9))
    line = stats.linregress(np.log(budgets), log_best)
    half = stats.t.ppf(0.975, len(budgets) - 2) * line.stderr
    without = [exponent(np.delete(budgets, i), np.delete(log_best, i)) for i in range(len(budgets))]
    by_size = sizes.groupby("budget").parameters
    left = sizes.parameters > by_size.transform("min"), sizes.parameters < by_size.transform("max")
    fewer = [sizes[rows].reset_index(drop=True) for rows in left]
    small, large = (exponent(budgets, minima(x, x.losses.map(np.mean))) for x in fewer)
    bare = sizes.assign(parameters=sizes.parameters - SYMBOLS * sizes.width)
    ends = exponent(budgets[:3], log_best[:3]), exponent(budgets[-3:], log_best[-3:])
    return [
        f"best size ~ budget^{line.slope:.2f}",
        f"  other seeds: {low:.2f} to {high:.2f} (80% of {DRAWS} draws)",
        f"  the line through the stars: {line.slope - half:.2f} to {line.slope + half:.2f} (95%)",
        f"  one budget left out: {min(without):.2f} to {max(without):.2f}, the last: {without[-1]:.2f}",
        f"  the first three budgets: {ends[0]:.2f}, the last three: {ends[1]:.2f}",
        f"  without each budget's smallest model: {small:.2f}, without its largest: {large:.2f}",
        f"  the embedding not counted: {exponent(budgets, minima(bare, means)):.2f}",
    ]


def tokens(budget: float, n: float) -> float:
    """Return how many tokens a budget buys for n parameters, whose width says what attention takes."""
    width = (np.sqrt(SYMBOLS**2 + 48 * LAYERS * n) - SYMBOLS) / (24 * LAYERS)  # as n = parameters(width)
    return budget / (6 * n + 12 * LAYERS * CONTEXT * width)


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
    valleys.set(xscale="log", xlabel="parameters N", ylabel="val loss (nats)")
    ticks(valleys.xaxis, [2e4, 1e5, 5e5, 2.5e6], ["20k", "100k", "500k", "2.5M"])
    valleys.set_title("five sizes at each budget")
    valleys.legend(fontsize="small", loc="upper right")

    power = exponent(budgets, log_best)
    for name, slope, color in (("all six stars", power, BLUE), ("Chinchilla's slope", CHINCHILLA, GREY)):
        line = np.exp(log_best.mean() + slope * (np.log(budgets) - np.log(budgets).mean()))
        growth.plot(budgets, line, lw=1.2, color=color, label=f"{name}: {slope:.2f}")
    growth.plot(budgets, np.exp(log_best), "*", ms=9, color=ORANGE)
    growth.set(xscale="log", yscale="log", xlabel="budget (FLOPs)", ylabel="best N")
    ticks(growth.xaxis, budgets, [flops(budget).removesuffix(" FLOPs") for budget in budgets])
    ticks(growth.yaxis, [5e4, 1e5, 2e5, 4e5, 8e5, 1.6e6], ["50k", "100k", "200k", "400k", "800k", "1.6M"])
    growth.set_title("the best size by budget")
    growth.legend(fontsize="small", title="exponent", title_fontsize="small")
    print(findings(sizes))


if __name__ == "__main__":
    save("isoflop", draw, width=8.4, height=3.6, ncols=2)
