"""Rotary position embeddings (arXiv:2104.09864): queries and keys turn by angles that grow with position.

The layout is Llama's: component i of a head turns together with component i + C/2.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Table = Float[Array | np.ndarray, "_ 1 T half"]  # the axis of length 1 is for the heads


def rotary_table(
    positions: Int[Array | np.ndarray, "_ T"], inv_freq: Float[np.ndarray, " half"]
) -> tuple[Table, Table]:
    """Return cos and sin of every position's angles, float32.

    NumPy positions give a NumPy table, which is a constant of a compiled program. Any other table XLA would
    compute again in each operation that reads it, for each row and each head.
    """
    angles = positions.astype(np.float32)[:, None, :, None] * inv_freq
    xp = np if isinstance(angles, np.ndarray) else jnp
    return xp.cos(angles), xp.sin(angles)


def rotate(x: Float[Array, "B heads T C"], cos: Table, sin: Table) -> Float[Array, "B heads T C"]:
    """Turn each pair of components by its angle, in float32; the result has the dtype of x."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def inverse_frequencies(head_size: int, theta: float, scaling: float = 1.0) -> Float[np.ndarray, " half"]:
    """Return the radians per position by which each of the C/2 pairs turns: 1, and ever less.

    `scaling` other than 1 is Llama 3's way to longer contexts (arXiv:2407.21783; transformers' rope_type
    "llama3"). Pairs that turn less than once in the 8192 tokens of the original training turn `scaling`
    times slower; pairs that turn more than four times there stay; between, it goes from one to the other.
    """
    inv_freq = theta ** (-np.arange(0, head_size, 2) / head_size)
    turns = inv_freq * 8192 / (2 * math.pi)
    stays = np.clip((turns - 1) / (4 - 1), 0, 1)
    return (inv_freq * (stays + (1 - stays) / scaling)).astype(np.float32)
