"""AdamW, Muon and NorMuon, since taken out, each at three learning rates around its best, in the miniature.

Runs at more rates, two seeds on another machine, chose these. Lion's best rate ended 0.4 above AdamW's there.
"""

from experiments.record import MINIATURE, Experiment
from experiments.runner import main

RATES = {"adamw": (2e-3, 4e-3, 8e-3), "muon": (4e-3, 8e-3, 16e-3), "normuon": (4e-3, 8e-3, 16e-3)}
EXPERIMENTS = [
    Experiment(
        name="optimizers",
        question="Which optimizer is best, each at its own best learning rate?",
        sets={
            f"{name} {rate:g}": MINIATURE | {"optimizer": name, "learning_rate": rate, "min_lr": rate / 10}
            for name in ("adamw", "muon")
            for rate in RATES[name]
        },
        lines={name: [f"{name} {rate:g}" for rate in rates] for name, rates in RATES.items()},
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS)
