"""The shape and length of runs of which many are needed: half the CPU Shakespeare run's width and steps.

The losses are estimated on 100 batches instead of 20, and so with half the noise.
"""

MINIATURE = {
    "n_embd": 64,
    "max_iters": 1000,
    "lr_decay_iters": 1000,
    "warmup_iters": 50,
    "eval_interval": 500,
    "eval_iters": 100,
}
