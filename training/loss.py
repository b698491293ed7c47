"""The loss, as a formula. The step computes it in chunks (training/chunked_loss.py)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cross_entropy(logits: Float[Array, "B T V"], targets: Int[Array, "B T"]) -> Float[Array, ""]:
    """Return the mean over the targets >= 0 of -log softmax(logits)[target], in nats; 0 without targets."""
    log_probabilities = jax.nn.log_softmax(logits)  # (B, T, V)
    chosen = jnp.take_along_axis(log_probabilities, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    counted = targets >= 0
    return -jnp.where(counted, chosen, 0).sum() / jnp.maximum(counted.sum(), 1)
