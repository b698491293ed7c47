"""Does training in bfloat16 cost any loss? The CPU Shakespeare config in both precisions.

Products alone are in bfloat16: weights, sums, norms and the loss stay in float32.
"""

from experiments.record import Experiment
from experiments.runner import main

EXPERIMENTS = [
    Experiment(
        name="precision",
        question="Does training in bfloat16 cost any loss?",
        sets={"bfloat16": {"dtype": "bfloat16"}, "float32": {"dtype": "float32"}},
    )
]

if __name__ == "__main__":
    main(EXPERIMENTS)
