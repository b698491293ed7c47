"""How many steps, and how many tokens, does it take to a given loss, at each batch size?

Small batches take the fewest tokens, large ones the fewest steps. Between them, steps = S (1 + b / batch): at
the critical batch b a run takes twice the fewest of both (arXiv:1812.06162). Rates are constant, and grow
with the root of the batch, as they should for Adam (arXiv:2205.10287).
"""

import numpy as np
import pandas as pd

from experiments.record import MINIATURE, Experiment, Record
from experiments.runner import main

TARGET = 2.2  # nats per token
ROWS = (4, 8, 16, 32, 64, 128)
LENGTH = 64  # tokens in a row


def options(rows: int) -> dict:
    steps = 320 + 9600 // rows
    schedule = dict(learning_rate=2e-3 * (rows / 12) ** 0.5, schedule="constant", lr_decay_iters=steps)
    evaluations = dict(eval_interval=max(10, steps // 40), eval_iters=1600 // rows)
    return MINIATURE | dict(batch_size=rows, max_iters=steps) | schedule | evaluations


def steps_to(evaluations: list[list[float]]) -> float | None:
    """Return the step, between two evaluations, at which the validation loss came to TARGET."""
    for (a, _, above), (b, _, below) in zip(evaluations, evaluations[1:], strict=False):
        if above > TARGET >= below:
            return a + (b - a) * (above - TARGET) / (above - below)
    return None


def reached(record: Record) -> pd.DataFrame:
    """Return each run's steps to the target: a row for each batch size whose runs all reach it."""
    found = {rows: [steps_to(run["evaluations"]) for run in record.runs(f"batch {rows}")] for rows in ROWS}
    able = {rows: took for rows, took in found.items() if len(took) > 1 and None not in took}
    return pd.DataFrame.from_dict(able, orient="index")


def fit(rows: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
    """Return S and b, by least squares of relative errors."""
    product, fewest = np.polyfit(1 / rows, steps, 1, w=1 / steps)
    return float(fewest), float(product / fewest)


def findings(record: Record) -> list[str]:
    steps = reached(record)
    means, spreads = steps.mean(axis=1), steps.std(axis=1)
    lines = [
        f"{rows} x {LENGTH} tokens: {means[rows]:.0f} ± {spreads[rows]:.0f} steps, "
        f"{means[rows] * rows * LENGTH / 1e3:.0f}k tokens to {TARGET}."
        for rows in steps.index
    ]
    if len(steps) > 2:
        fewest, critical = fit(steps.index.to_numpy(), means.to_numpy())
        lines.append(f"Fitted: {fewest:.0f} steps at least, critical batch {critical * LENGTH:,.0f} tokens.")
    return lines


EXPERIMENTS = [
    Experiment(
        name="batch_size",
        question="How many steps and tokens does a given loss take, at each batch size?",
        sets={f"batch {rows}": options(rows) for rows in ROWS},
        findings=findings,
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS)
