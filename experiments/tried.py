"""Polar Express, NorMuon, and rope on a part of the head: do they earn their lines?

With Muon at the best of its rates in experiments/optimizers.py, on the miniature.
"""

from experiments.miniature import MINIATURE
from experiments.record import Experiment
from experiments.report import draw_dots
from experiments.runner import main

MUON = MINIATURE | {"optimizer": "muon", "learning_rate": 8e-3, "min_lr": 8e-4}

EXPERIMENTS = [
    Experiment(
        name="tried_muon",
        program="tried",
        question="Do Polar Express and NorMuon help Muon?",
        sets={"muon": MUON} | {name: MUON | {"muon_variant": name} for name in ("polar", "normuon", "both")},
        draw=draw_dots,
    ),
    Experiment(
        name="tried_rope",
        program="tried",
        question="Does rope on a part of the head help?",
        sets={"rope": MUON | {"position": "rope"}}
        | {f"on {s:g} of the head": MUON | {"position": "rope", "rope_share": s} for s in (0.5, 0.25)},
        draw=draw_dots,
    ),
]

if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
