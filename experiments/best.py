"""The best small model, next to the CPU Shakespeare run: in its time, and in the time to nanoGPT's 1.88."""

from experiments.record import Experiment
from experiments.runner import main

SHORTER = {"max_iters": 300, "lr_decay_iters": 300, "warmup_iters": 30, "eval_interval": 100}
BEFORE = {"optimizer": "normuon", "value_embeddings": True}

EXPERIMENTS = [
    Experiment(
        name="best",
        question="What does the best recipe come to, and how soon is it at 1.88?",
        sets={
            "as it is": {},
            "300 steps": SHORTER,
            "as it was": BEFORE,
            "300 steps, as it was": BEFORE | SHORTER,
        },
        config="config/train_shakespeare_char_best.py",
        removed=dict.fromkeys(("as it was", "300 steps, as it was"), "value embeddings, NorMuon"),
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS)
