"""Chapter 7: how many steps, and how many tokens, a given loss takes at each batch size."""

import numpy as np
import pandas as pd

from docs.figures import BLUE, GREY, ORANGE, save, ticks
from experiments.record import RESULTS, Record

TARGET = 2.2  # nats per token
LENGTH = 64  # tokens in a row


def draw(axes) -> None:
    steps = reached(Record(RESULTS / "batch_size.json"))
    rows, means = steps.index.to_numpy(), steps.mean(axis=1).to_numpy()
    fewest, critical = fit(rows, means)
    line = np.geomspace(rows[0], rows[-1], 50)
    fitted = fewest * (1 + critical / line)
    for one, seen, smooth in (
        (axes[0], steps, fitted),
        (axes[1], steps.mul(steps.index * LENGTH / 1e3, axis=0), fitted * line * LENGTH / 1e3),
    ):
        one.plot(line, smooth, lw=1.2, color=BLUE, label="fewest · (1 + critical / rows)")
        for seed in seen:
            one.plot(rows, seen[seed], "o", ms=4, color=GREY)
        one.axvline(critical, color=ORANGE, lw=1, ls="--")
        one.set(xscale="log", yscale="log", xlabel=f"rows of {LENGTH} tokens in a batch")
        ticks(one.xaxis, rows)
    at = axes[0].get_xaxis_transform()
    axes[0].text(1.08 * critical, 0.92, f"critical batch: {critical:.0f}", transform=at, color=ORANGE)
    ticks(axes[0].yaxis, [200, 400, 800, 1600])
    ticks(axes[1].yaxis, [500, 1000, 2000])
    axes[0].set_title(f"steps to a loss of {TARGET}")
    axes[1].set_title("thousands of tokens read by then")
    axes[0].legend(loc="lower left", fontsize="small")
    print(f"fitted: {fewest:.0f} steps at least, critical batch {critical:.0f} rows")


def reached(record: Record) -> pd.DataFrame:
    """Return each run's steps to the target: a row for each batch size whose runs all reach it."""
    found = {
        entry.options["batch_size"]: [steps_to(run.evaluations) for run in entry.runs]
        for entry in record.sets.values()
    }
    able = {rows: took for rows, took in found.items() if len(took) > 1 and None not in took}
    return pd.DataFrame.from_dict(able, orient="index")


def steps_to(evaluations: list[tuple[int, float, float]]) -> float | None:
    """Return the step, between two evaluations, at which the validation loss came to TARGET."""
    for (a, _, above), (b, _, below) in zip(evaluations, evaluations[1:], strict=False):
        if above > TARGET >= below:
            return a + (b - a) * (above - TARGET) / (above - below)
    return None


def fit(rows: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
    """Return the fewest steps and the critical batch, by least squares of relative errors."""
    product, fewest = np.polyfit(1 / rows, steps, 1, w=1 / steps)
    return float(fewest), float(product / fewest)


if __name__ == "__main__":
    save("batch_size", draw, width=8.4, ncols=2)
