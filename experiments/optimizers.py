"""AdamW, Muon and NorMuon, each at three learning rates around its best, in the miniature.

Runs of 4 optimizers at 4 rates each, two seeds on another machine, chose these. Lion's best rate stayed 0.4
behind AdamW's there.
"""

from functools import partial

from experiments.miniature import MINIATURE
from experiments.record import Experiment
from experiments.report import best_of_each, draw_lines
from experiments.runner import main

RATES = {
    "adamw": (2e-3, 4e-3, 8e-3),
    "muon": (4e-3, 8e-3, 16e-3),
    "normuon": (4e-3, 8e-3, 16e-3),
}
LINES = {name: [f"{name} {rate:g}" for rate in rates] for name, rates in RATES.items()}


EXPERIMENTS = [
    Experiment(
        name="optimizers",
        program="optimizers",
        question="Which optimizer is best, each at its own best learning rate?",
        sets={
            f"{name} {rate:g}": MINIATURE | {"optimizer": name, "learning_rate": rate, "min_lr": rate / 10}
            for name, rates in RATES.items()
            for rate in rates
        },
        draw=partial(draw_lines, x="learning_rate", lines=LINES),
        findings=partial(best_of_each, lines=LINES),
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
