"""AdamW as nanoGPT sets it up: warmup and a cosine, clipping, and weight decay on matrices only."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from config.options import Options
from model import GPT


def make_optimizer(options: Options) -> optax.GradientTransformation:
    """Clip the gradients' global norm to `grad_clip` (0: do not), then AdamW (arXiv:1711.05101)."""
    adamw = optax.adamw(
        lambda step: learning_rate(options, step),
        b1=options.beta1,
        b2=options.beta2,
        weight_decay=options.weight_decay,
        mask=decayed,
    )
    clip = optax.clip_by_global_norm(options.grad_clip) if options.grad_clip else optax.identity()
    return optax.chain(clip, adamw)  # its state has one structure, so that a resumed run may change grad_clip


def learning_rate(options: Options, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """Linear warmup, then a cosine from `learning_rate` down to `min_lr` at `lr_decay_iters`."""
    if not options.decay_lr:
        return jnp.asarray(options.learning_rate, jnp.float32)
    warmup = options.learning_rate * (step + 1) / (options.warmup_iters + 1)
    progress = (step - options.warmup_iters) / max(options.lr_decay_iters - options.warmup_iters, 1)
    cosine = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(progress, 0, 1)))
    decayed = options.min_lr + cosine * (options.learning_rate - options.min_lr)
    return jnp.where(step < options.warmup_iters, warmup, decayed).astype(jnp.float32)


def decayed(model: GPT) -> GPT:
    """True for matrices and embeddings, False for biases and norms. Blocks have a layer axis on top."""

    def is_matrix(path, x):
        return x.ndim - (path[0].name == "blocks") >= 2

    return jax.tree_util.tree_map_with_path(is_matrix, model)
