"""Is training stable at ten times the learning rate, and at thirty, with qk_norm, a softcap, a z-loss?

qk_norm bounds the attention's scores (arXiv:2302.05442), the softcap bounds the logits (Gemma 2,
arXiv:2408.00118), and the z-loss holds the logits' normalizer near 1 (PaLM, arXiv:2204.02311).
"""

from experiments.record import MINIATURE, Experiment, Record
from experiments.report import describe
from experiments.runner import main

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
MEANS = {"without": {}, "qk_norm": {"qk_norm": True}}
TAKEN_OUT = ("softcap", "z-loss", "all three")
LINES = {name: [f"{name}, {rate:g}" for rate in RATES] for name in (*MEANS, *TAKEN_OUT)}


def findings(record: Record) -> list[str]:
    """Return a line for each means: its losses from low rates to high."""
    return [
        f"{name}: {'; '.join(describe(record.losses(label)) for label in labels)}."
        for name, labels in LINES.items()
    ]


EXPERIMENTS = [
    Experiment(
        name="stability",
        question="What keeps training stable at ten times the learning rate?",
        sets={
            f"{name}, {rate:g}": MINIATURE | own | {"learning_rate": rate, "min_lr": rate / 10}
            for name, own in MEANS.items()
            for rate in RATES
        },
        findings=findings,
        lines=LINES,
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS)
