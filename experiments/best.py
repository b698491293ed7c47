"""The best small model here, next to the CPU Shakespeare run: in its time, and in the time to nanoGPT's 1.88.

What the CPU Shakespeare config's own runs come to is in experiments/precision.py: on a CPU that multiplies
bfloat16, the runs in bfloat16 are those of that config as it is.
"""

from experiments.record import Experiment
from experiments.report import draw_curves
from experiments.runner import main

SHORT = 300
SHORTER = {
    "max_iters": SHORT,
    "lr_decay_iters": SHORT,
    "warmup_iters": SHORT // 10,
    "eval_interval": SHORT // 3,
}
BEFORE = {"optimizer": "normuon", "value_embeddings": True}

EXPERIMENTS = [
    Experiment(
        name="best",
        program="best",
        question="What does the best recipe come to, and how soon is it at 1.88?",
        config="config/train_shakespeare_char_best.py",
        sets={
            "as it is": {},
            f"{SHORT} steps": SHORTER,
            "as it was": BEFORE,
            f"{SHORT} steps, as it was": BEFORE | SHORTER,
        },
        draw=draw_curves,
        removed=dict.fromkeys(("as it was", f"{SHORT} steps, as it was"), "value embeddings, NorMuon"),
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS, __doc__)
