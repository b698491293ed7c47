"""Where is the best learning rate at each width, with the standard initialisation and with µP's?

In the standard parametrisation the best rate falls as the model grows wider; in µP (arXiv:2203.03466) it
should stay where it is, so that it can be found on a narrow model. Two layers, four heads, `rope`, 300 steps;
with AdamW and with Muon.
"""

from functools import partial

from experiments.record import Experiment
from experiments.report import best_of_each, draw_lines
from experiments.runner import main

WIDTHS = (64, 128, 256, 512)
BASE = 256  # at this width a model in µP is an ordinary one
KINDS = {"standard": {}, "µP": {"mup_base_width": BASE}}
RATES = {
    "adamw": (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3),
    "muon": (2e-3, 4e-3, 8e-3, 16e-3, 32e-3, 64e-3),
}


def rates(optimizer: str, width: int) -> tuple[float, ...]:
    """Return the rates to try. At 512 Muon's products take longer than all else: there are only three."""
    return RATES[optimizer][:3] if (optimizer, width) == ("muon", 512) else RATES[optimizer]


def label(kind: str, width: int, rate: float) -> str:
    return f"{'standard' if width == BASE else kind}, width {width}, {rate:g}"


def options(optimizer: str, kind: str, width: int, rate: float) -> dict:
    shape = dict(position="rope", n_layer=2, n_embd=width, n_head=4)
    schedule = dict(warmup_iters=30, max_iters=300, lr_decay_iters=300, eval_interval=300, eval_iters=50)
    return KINDS[kind] | shape | schedule | dict(optimizer=optimizer, learning_rate=rate, min_lr=rate / 10)


def experiment(optimizer: str) -> Experiment:
    lines = {
        f"{kind}, width {width}": [label(kind, width, rate) for rate in rates(optimizer, width)]
        for kind in KINDS
        for width in WIDTHS
    }
    return Experiment(
        name="learning_rate" if optimizer == "adamw" else f"learning_rate_{optimizer}",
        program="learning_rate",
        question=f"Where is the best learning rate of {optimizer} at each width, without and with µP?",
        sets={
            label(kind, width, rate): options(optimizer, kind, width, rate)
            for width in WIDTHS
            for kind in KINDS
            for rate in rates(optimizer, width)
            if (kind, width) != ("µP", BASE)
        },
        draw=partial(draw_lines, x="learning_rate", lines=lines),
        findings=partial(best_of_each, lines=lines),
    )


EXPERIMENTS = [experiment("adamw"), experiment("muon")]

if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
