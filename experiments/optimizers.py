"""AdamW, Muon, NorMuon and Lion, each at its own best learning rate, in the miniature.

Lion's updates are about five times as large as Adam's, so its rates are lower, and its weight decay is five
times AdamW's (arXiv:2302.06675), so that both shrink a weight alike.
"""

from functools import partial

from experiments.miniature import MINIATURE
from experiments.record import TAKEN_OUT, Experiment
from experiments.report import best_of_each, draw_lines
from experiments.runner import main

RATES = {
    "adamw": (1e-3, 2e-3, 4e-3, 8e-3),
    "muon": (2e-3, 4e-3, 8e-3, 16e-3),
    "normuon": (2e-3, 4e-3, 8e-3, 16e-3),
    "lion": (4e-4, 8e-4, 1.6e-3, 3.2e-3),
}
DECAY = {"adamw": 0.1, "muon": 0.1, "normuon": 0.1, "lion": 0.5}
LINES = {name: [f"{name} {rate:g}" for rate in rates] for name, rates in RATES.items()}


EXPERIMENTS = [
    Experiment(
        name="optimizers",
        program="optimizers",
        question="Which optimizer is best, each at its own best learning rate?",
        sets={
            f"{name} {rate:g}": MINIATURE
            | {"optimizer": name, "learning_rate": rate, "min_lr": rate / 10, "weight_decay": DECAY[name]}
            for name, rates in RATES.items()
            for rate in rates
        },
        draw=partial(draw_lines, x="learning_rate", lines=LINES),
        removed=dict.fromkeys(LINES["lion"], TAKEN_OUT),
        findings=partial(best_of_each, lines=LINES),
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
