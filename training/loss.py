"""The loss: cross entropy between the head's predictions and the next tokens.

`cross_entropy` says what it is. training/chunked_loss.py computes the same without holding all the logits at
once, and the step uses that.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cross_entropy(logits: Float[Array, "B T V"], targets: Int[Array, "B T"]) -> Float[Array, ""]:
    """Return the mean over the targets >= 0 of -log softmax(logits)[target], in nats; 0 without targets."""
    log_probabilities = jax.nn.log_softmax(logits)  # (B, T, V)
    chosen = jnp.take_along_axis(log_probabilities, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    counted = targets >= 0
    return -jnp.where(counted, chosen, 0).sum() / jnp.maximum(counted.sum(), 1)
