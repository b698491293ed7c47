"""The scaling law, small: how much of a budget of FLOPs goes best into a larger model, how much into data?

Five sizes at each budget train for as many steps as it buys. A parabola through their losses, over the
logarithm of the parameters, has its minimum at the best size, which grows as a power of the budget
(Chinchilla's approach 2, arXiv:2203.15556).
"""

from typing import Any

import numpy as np

from experiments.record import Experiment, Record
from experiments.runner import main
from model import GPTConfig
from runs.metrics import flops_per_token

WIDTHS = {
    3e11: (16, 24, 32, 48, 64),
    1e12: (24, 32, 48, 64, 96),
    3e12: (32, 48, 64, 96, 128),
    1e13: (48, 64, 96, 128, 192),
    3e13: (64, 96, 128, 192, 256),
    1e14: (96, 128, 192, 256, 384),
}
LAYERS, ROWS, LENGTH, SYMBOLS = 4, 16, 64, 96
SHAPE: dict[str, Any] = dict(n_layer=LAYERS, n_head=2, mlp="gelu", block_size=LENGTH)
# The exponent and its 10th and 90th percentiles: table 2, approach 2.
CHINCHILLA = 0.49, 0.462, 0.534
DRAWS = 1000  # of the seeds, for the errors


def parameters(width: int) -> int:
    """Return how many weights a model has, with the tokens' embedding."""
    return 12 * LAYERS * width**2 + SYMBOLS * width


def steps(budget: float, width: int) -> int:
    """Return the steps that a budget of FLOPs buys."""
    config = GPTConfig(vocab_size=SYMBOLS, n_embd=width, **SHAPE)
    return round(budget / (flops_per_token(config, LENGTH) * ROWS * LENGTH))


def options(budget: float, width: int) -> dict:
    """Return a run's options. Muon's learning rate falls with the root of the width."""
    count, rate = steps(budget, width), min(16e-3, 8e-3 * (64 / width) ** 0.5)
    schedule = dict(max_iters=count, lr_decay_iters=count, warmup_iters=count // 20)
    evaluations = dict(eval_interval=-(-count // 4), eval_iters=100)  # each saves a checkpoint
    own = dict(batch_size=ROWS, optimizer="muon", learning_rate=rate, min_lr=rate / 10)
    return SHAPE | {"n_embd": width} | own | schedule | evaluations


def flops(budget: float) -> str:
    return f"{budget:.0e} FLOPs".replace("e+", "e")


def label(budget: float, width: int) -> str:
    return f"{flops(budget)}, width {width}"


def complete(record: Record) -> dict[float, list[np.ndarray]]:
    """Return each size's losses by budget, where all sizes have two seeds."""
    found = {
        budget: [record.losses(label(budget, width)).dropna().to_numpy() for width in widths]
        for budget, widths in WIDTHS.items()
    }
    return {budget: losses for budget, losses in found.items() if min(map(len, losses)) > 1}


def minima(losses: dict[float, list[np.ndarray]]) -> dict[float, float]:
    """Return the best number of parameters for each budget."""
    logs = {budget: np.log([parameters(width) for width in WIDTHS[budget]]) for budget in losses}
    return {budget: lowest(logs[budget], [np.mean(x) for x in found]) for budget, found in losses.items()}


def lowest(log_size: np.ndarray, loss: list) -> float:
    """Return the size at the minimum of the parabola through the losses; nan where it has none."""
    square, slope, _ = np.polyfit(log_size, loss, 2)
    return float(np.exp(-slope / (2 * square))) if square > 0 else float("nan")


def exponent(best: dict[float, float]) -> float:
    """Return a of best size ~ budget^a."""
    return float(np.polyfit(np.log(list(best)), np.log(list(best.values())), 1)[0])


def redraw(losses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw as many losses with replacement, spread as new seeds would be."""
    mean, n = losses.mean(), len(losses)
    return mean + (rng.choice(losses, n) - mean) * np.sqrt(n / (n - 1))


def tokens_read(budget: float, size: float) -> float:
    """Return the tokens that a model reads, between those of the sizes around it."""
    sizes = np.log([parameters(width) for width in WIDTHS[budget]])
    tokens = np.log([steps(budget, width) * ROWS * LENGTH for width in WIDTHS[budget]])
    return float(np.exp(np.interp(np.log(size), sizes, tokens)))


def findings(record: Record) -> list[str]:
    losses, rng = complete(record), np.random.default_rng(0)
    best = minima(losses)
    lines = [
        f"{flops(budget)}: best at {size:,.0f} parameters, "
        f"{tokens_read(budget, size) / size:.0f} tokens for each."
        for budget, size in best.items()
    ]
    if len(best) > 1:
        drawn = [
            exponent(minima({budget: [redraw(x, rng) for x in found] for budget, found in losses.items()}))
            for _ in range(DRAWS)
        ]
        low, high = np.nanquantile(drawn, (0.1, 0.9))
        lines.append(
            f"The best size grows as budget^{exponent(best):.2f} ({low:.2f} to {high:.2f}: 80% of {DRAWS} "
            "draws of the seeds); Chinchilla's as budget^{:.2f} ({} to {}).".format(*CHINCHILLA)
        )
    return lines


EXPERIMENTS = [
    Experiment(
        name="isoflop",
        question="Which size of model makes the most of a budget of FLOPs?",
        sets={label(b, width): options(b, width) for b, widths in WIDTHS.items() for width in widths},
        findings=findings,
        lines={flops(b): [label(b, width) for width in widths] for b, widths in WIDTHS.items()},
        x="n_embd",
        config="config/quickstart.py",
        seeds=3,
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS)
