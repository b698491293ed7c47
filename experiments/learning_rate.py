"""Where is the best learning rate at each width, with today's initialisation and with µP's?

In the standard parametrization the best rate falls as the model grows wider; in µP (arXiv:2203.03466) it
should stay where it is, so that it can be found on a narrow model. Two layers, four heads, 300 steps; once
with AdamW and once with Muon.
"""

from functools import partial

from experiments.record import Experiment
from experiments.report import best_of_each, draw_lines
from experiments.runner import main

WIDTHS = (64, 128, 256, 512)
RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
KINDS = {"standard": {}, "µP": {"mup_base_width": 64}}


def label(kind: str, width: int, rate: float) -> str:
    return f"{kind}, width {width}, {rate:g}"


LINES = {
    f"{kind}, width {width}": [label(kind, width, rate) for rate in RATES]
    for kind in KINDS
    for width in WIDTHS
}


def options(optimizer: str, kind: str, width: int, rate: float) -> dict:
    return KINDS[kind] | {
        "optimizer": optimizer,
        "n_layer": 2,
        "n_embd": width,
        "n_head": 4,
        "learning_rate": rate,
        "min_lr": rate / 10,
        "warmup_iters": 30,
        "max_iters": 300,
        "lr_decay_iters": 300,
        "eval_interval": 300,
        "eval_iters": 50,
    }


EXPERIMENTS = [
    Experiment(
        name="learning_rate" if optimizer == "adamw" else f"learning_rate_{optimizer}",
        program="learning_rate",
        question=f"Where is the best learning rate of {optimizer} at each width, without and with µP?",
        sets={
            label(kind, width, rate): options(optimizer, kind, width, rate)
            for width in WIDTHS
            for kind in KINDS
            for rate in RATES
        },
        draw=partial(draw_lines, x="learning_rate", lines=LINES),
        findings=partial(best_of_each, lines=LINES),
    )
    for optimizer in ("adamw", "muon")
]

if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
