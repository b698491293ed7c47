"""The best small model, next to the CPU Shakespeare run: in its time, and in the time to nanoGPT's 1.88.

"As it was", it had value embeddings and NorMuon.
"""

from experiments.record import Experiment
from experiments.runner import main

SHORTER = {"max_iters": 300, "lr_decay_iters": 300, "warmup_iters": 30, "eval_interval": 100}

EXPERIMENTS = [
    Experiment(
        name="best",
        question="What does the best recipe come to, and how soon is it at 1.88?",
        sets={"as it is": {}, "300 steps": SHORTER},
        config="config/train_shakespeare_char_best.py",
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS)
