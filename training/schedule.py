"""The learning rate of each step."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from config.options import Options

DECAYING = 0.2  # the part of the run over which `wsd` decays (arXiv:2405.18392)


def learning_rate(options: Options, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """Return the learning rate of a step: linear warmup to `learning_rate`, then what `schedule` says.

        cosine     a half cosine down to min_lr at lr_decay_iters
        wsd        "warmup, stable, decay" (arXiv:2404.06395): constant, then linearly down to min_lr over the
                   last fifth of lr_decay_iters
        constant   constant

    With nanoGPT's `decay_lr=False` the rate is `learning_rate` throughout, without warmup.
    """
    step = jnp.asarray(step)
    highest, warmup, end = options.learning_rate, options.warmup_iters, options.lr_decay_iters
    if not options.decay_lr:
        return jnp.asarray(highest, jnp.float32)
    start = max(warmup, (1 - DECAYING) * end) if options.schedule == "wsd" else warmup
    progress = jnp.clip((step - start) / max(end - start, 1), 0, 1)
    left = {"cosine": 0.5 * (1 + jnp.cos(jnp.pi * progress)), "wsd": 1 - progress, "constant": 1.0}
    scheduled = options.min_lr + left[options.schedule] * (highest - options.min_lr)
    return jnp.where(step < warmup, highest * (step + 1) / (warmup + 1), scheduled).astype(jnp.float32)
