"""Where is the best learning rate at each width, with the standard initialisation and with µP's?

In the standard parametrisation the best rate falls as the model grows wider; in µP (arXiv:2203.03466) it
should stay where it is, so that it can be found on a narrow model.
"""

from experiments.record import Experiment
from experiments.runner import main

WIDTHS = (64, 128, 256, 512)
BASE = 256  # at this width a model in µP is an ordinary one
KINDS = {"standard": {}, "µP": {"mup_base_width": BASE}}
RATES = {
    "adamw": (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3),
    "muon": (2e-3, 4e-3, 8e-3, 16e-3, 32e-3, 64e-3),
}


def rates(optimizer: str, width: int) -> tuple[float, ...]:
    """Return the rates to try: only three where Muon's products take longer than all else."""
    return RATES[optimizer][:3] if (optimizer, width) == ("muon", 512) else RATES[optimizer]


def label(kind: str, width: int, rate: float) -> str:
    return f"{'standard' if width == BASE else kind}, width {width}, {rate:g}"


def options(optimizer: str, kind: str, width: int, rate: float) -> dict:
    shape = dict(position="rope", n_layer=2, n_embd=width, n_head=4)
    schedule = dict(warmup_iters=30, max_iters=300, lr_decay_iters=300, eval_interval=300, eval_iters=50)
    return KINDS[kind] | shape | schedule | dict(optimizer=optimizer, learning_rate=rate, min_lr=rate / 10)


EXPERIMENTS = [
    Experiment(
        name=name,
        question=f"Where is the best learning rate of {optimizer} at each width, without and with µP?",
        program="learning_rate",
        sets={
            label(kind, width, rate): options(optimizer, kind, width, rate)
            for width in WIDTHS
            for kind in KINDS
            for rate in rates(optimizer, width)
            if (kind, width) != ("µP", BASE)
        },
        lines={
            f"{kind}, width {width}": [label(kind, width, rate) for rate in rates(optimizer, width)]
            for kind in KINDS
            for width in WIDTHS
        },
    )
    for name, optimizer in (("learning_rate", "adamw"), ("learning_rate_muon", "muon"))
]

if __name__ == "__main__":
    main(EXPERIMENTS)
