"""How many steps, and how many tokens, does it take to a given loss, at each batch size?

Small batches take the fewest tokens and large ones the fewest steps. Between them, steps = S (1 + b / batch):
at the critical batch b a run takes twice the fewest steps and twice the fewest tokens (arXiv:1812.06162).
Rates grow with the root of the batch, as they should for Adam (arXiv:2205.10287), and are constant in a run.
"""

import numpy as np

from experiments.miniature import MINIATURE
from experiments.record import Experiment, Record
from experiments.runner import main

TARGET = 2.2  # nats per token
ROWS = (4, 8, 16, 32, 64, 128)
LENGTH = 64  # tokens in a row
EVALUATED = 1600  # rows of each split


def options(rows: int) -> dict:
    """Return the options of a batch of so many rows. The steps are more than are needed, it is hoped."""
    steps = 320 + 9600 // rows
    return MINIATURE | {
        "batch_size": rows,
        "learning_rate": 2e-3 * (rows / 12) ** 0.5,
        "schedule": "constant",
        "max_iters": steps,
        "lr_decay_iters": steps,
        "eval_interval": max(10, steps // 40),
        "eval_iters": EVALUATED // rows,
    }


def steps_to(target: float, evaluations: list[list[float]]) -> float | None:
    """Return the step, between two evaluations, at which the validation loss came to `target`; or None."""
    for (a, _, above), (b, _, below) in zip(evaluations, evaluations[1:], strict=False):
        if above > target >= below:
            return a + (b - a) * (above - target) / (above - below)
    return None


def reached(experiment: Experiment, record: Record) -> dict[int, list[float]]:
    """Return, by batch size, the steps that the runs took to the target; of batches with two runs or more."""
    found = {}
    for rows in ROWS:
        runs = record.runs(f"batch {rows}", experiment.options(f"batch {rows}"))
        took = [step for run in runs if (step := steps_to(TARGET, run["evaluations"])) is not None]
        if 1 < len(took) == len(runs):
            found[rows] = took
    return found


def fit(rows: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
    """Return S and b of steps = S (1 + b / rows), by least squares of relative errors."""
    weights = 1 / steps
    matrix = np.stack([np.ones(len(rows)), 1 / rows], 1)
    (fewest, product), *_ = np.linalg.lstsq(matrix * weights[:, None], steps * weights)
    return float(fewest), float(product / fewest)


def findings(experiment: Experiment, record: Record) -> list[str]:
    found = reached(experiment, record)
    lines = [
        f"{rows} x {LENGTH} tokens: {np.mean(took):.0f} ± {np.std(took, ddof=1):.0f} steps, "
        f"{np.mean(took) * rows * LENGTH / 1e3:.0f}k tokens to {TARGET}."
        for rows, took in found.items()
    ]
    if len(found) > 2:
        fewest, critical = fit(np.array(list(found)), np.array([np.mean(took) for took in found.values()]))
        lines.append(f"Fitted: {fewest:.0f} steps at least, critical batch {critical * LENGTH:,.0f} tokens.")
    return lines


def draw(axes, experiment: Experiment, record: Record) -> None:
    found = reached(experiment, record)
    tokens = [rows * LENGTH for rows in found]
    for name, scale in (("steps", [1] * len(found)), ("thousands of tokens", [t / 1e3 for t in tokens])):
        means = [np.mean(took) * s for took, s in zip(found.values(), scale, strict=True)]
        spread = [np.std(took, ddof=1) * s for took, s in zip(found.values(), scale, strict=True)]
        axes.errorbar(tokens, means, spread, marker="o", ms=4, lw=1, capsize=3, label=f"{name} to {TARGET}")
    axes.set(xscale="log", yscale="log", xlabel="tokens in a batch")
    axes.legend()


EXPERIMENTS = [
    Experiment(
        name="batch_size",
        program="batch_size",
        question="How many steps and tokens does a given loss take, at each batch size?",
        sets={f"batch {rows}": options(rows) for rows in ROWS},
        draw=draw,
        findings=findings,
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
