"""From nanoGPT's recipe to the best one here: what does each change do, alone and on top of the others?

Every run takes half of the CPU Shakespeare run's steps, since the aim is the same loss in less time, and
decays its learning rate in them. A change alone is measured at nanoGPT's learning rate; those that allow a
higher one gain more on top of it. Equal steps are not equal time: --time, then --equal_time.
"""

from experiments.record import Experiment
from experiments.report import draw_dots
from experiments.runner import main

SHAKESPEARE = {"max_iters": 1000, "lr_decay_iters": 1000, "eval_interval": 500, "eval_iters": 100}
PYTHON = {
    "dataset": "python_char",
    "batch_size": 16,
    "block_size": 128,
    "max_iters": 600,
    "lr_decay_iters": 600,
}
PYTHON |= {"eval_interval": 300, "eval_iters": 50}

NANOGPT = {"mlp": "gelu"}
ALONE = {
    "rate x2": {"learning_rate": 2e-3, "min_lr": 2e-4},
    "rate x4": {"learning_rate": 4e-3, "min_lr": 4e-4},
    "muon": {"optimizer": "muon"},
    "wsd": {"schedule": "wsd"},
    "rope": {"position": "rope"},
    "rmsnorm": {"norm": "rmsnorm"},
    "swiglu": {"mlp": "swiglu"},
    "qk_norm": {"qk_norm": True},
    "untied": {"tie_embeddings": False},
}


def sets(shared: dict) -> dict[str, dict]:
    """Return the option sets: nanoGPT's recipe, and each change to it alone."""
    return {"nanoGPT": NANOGPT | shared} | {label: NANOGPT | shared | own for label, own in ALONE.items()}


EXPERIMENTS = [
    Experiment(
        name=f"ladder_{name}",
        program="ladder",
        question=f"What does each change to nanoGPT's recipe do, in {shared['max_iters']} steps on {name}?",
        sets=sets(shared),
        draw=draw_dots,
    )
    for name, shared in (("shakespeare", SHAKESPEARE), ("python", PYTHON))
]

if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
