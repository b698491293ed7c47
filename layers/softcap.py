"""A soft bound on the logits, as in Gemma 2 (arXiv:2408.00118)."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def softcap(logits: Float[Array, "*batch V"], cap: float) -> Float[Array, "*batch V"]:
    """Return cap * tanh(logits / cap), float32, all within cap of 0; for a cap of 0, the logits."""
    return cap * jnp.tanh(logits.astype(jnp.float32) / cap) if cap else logits


def slope(capped: Float[Array, "*batch V"], cap: float) -> Float[Array, "*batch V"]:
    """Return the derivative of `softcap`, given what it returned for a cap above 0."""
    return 1 - jnp.square(capped / cap)
