"""From nanoGPT's recipe to the best one here: what does each change do, alone and on top of the others?

Every run takes half of the CPU Shakespeare run's steps, since the aim is the same loss in less time. A change
alone is measured at nanoGPT's learning rate; those that allow a higher one gain more on top of it. With
`--time` and then `--equal_time`, every change trains for the time of nanoGPT's recipe.
"""

from experiments.record import Experiment
from experiments.runner import main

NANOGPT = {"mlp": "gelu"}
DATA = {
    "shakespeare": {"max_iters": 1000, "lr_decay_iters": 1000, "eval_interval": 500, "eval_iters": 100},
    "python": {
        **{"dataset": "python_char", "batch_size": 16, "block_size": 128},
        **{"max_iters": 600, "lr_decay_iters": 600, "eval_interval": 300, "eval_iters": 50},
    },
}

CHANGES = {
    "rate x2": {"learning_rate": 2e-3, "min_lr": 2e-4},
    "rate x4": {"learning_rate": 4e-3, "min_lr": 4e-4},
    "muon": {"optimizer": "muon"},
    "wsd": {"schedule": "wsd"},
    "rope": {"position": "rope"},
    "rmsnorm": {"norm": "rmsnorm"},
    "swiglu": {"mlp": "swiglu"},
    "relu2": {"mlp": "relu2"},
    "qk_norm": {"qk_norm": True},
    "untied": {"tie_embeddings": False},
    "attention gate": {"attention_gate": True},
}
UP = ("rate x4", "muon", "rope", "relu2", "qk_norm")


def alone(name: str, base: dict) -> Experiment:
    return Experiment(
        name=f"ladder_{name}",
        question=f"What does each change to nanoGPT's recipe do, in {base['max_iters']} steps on {name}?",
        sets={"nanoGPT": base} | {label: base | change for label, change in CHANGES.items()},
        program="ladder",
    )


def on_top(name: str, base: dict) -> Experiment:
    sets = {"nanoGPT": base}
    for label in UP:
        sets[f"+ {label}"] = [*sets.values()][-1] | CHANGES[label]
    return Experiment(
        name=f"ladder_{name}_up",
        question=f"And what does each on top of those before it, in {base['max_iters']} steps on {name}?",
        sets=sets,
        program="ladder",
        upward=True,
    )


EXPERIMENTS = [kind(name, NANOGPT | steps) for kind in (alone, on_top) for name, steps in DATA.items()]

if __name__ == "__main__":
    main(EXPERIMENTS)
