"""Attention: `causal_attention` makes the `attend(q, k, v, key)` that a model's layers call."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from layers.compute import Compute
from layers.dropout import dropout
from layers.kernels import TOKENS, fused_attention
from layers.products import product

# attend(q, k, v, key): q (B, T, H, C), k and v (B, T, K, C), a key for dropout or None -> (B, T, H, C)
Attend = Callable[..., Float[Array, "B T H C"]]
Positions = Int[Array | np.ndarray, "_ T"]  # one row may serve all


def causal_attention(
    config, tokens: Int[Array, "B T"], watch: Callable | None = None
) -> tuple[Positions, Attend]:
    """Return the tokens' positions in their documents, and the `attend` for entire rows.

    A token reads its document up to itself, at most the last `window` tokens. An `eot` begins a document.
    `watch` is called with attention's weights, (B, K, H / K, T, T).
    """
    T, compute = tokens.shape[1], config.compute
    positions, documents = np.arange(T, dtype=np.int32)[None], None  # constants of the program
    if config.eot is not None:
        documents = document_starts(tokens, config.eot, positions)
        positions = positions - documents
    rotate = rotation(config, positions)

    @jax.named_scope("attention")
    def attend(q, k, v, key=None):
        q, k, v = rotate(q.swapaxes(1, 2)), rotate(k.swapaxes(1, 2)), v.swapaxes(1, 2)  # (B, heads, T, C)
        plain = watch is None and (key is None or config.dropout == 0)
        if plain and compute.attention != "einsum" and T % TOKENS[compute.attention] == 0:
            y = fused_attention(q, k, v, documents, compute.attention, config.window, compute.dtype)
        else:
            mask = causal_mask(jnp.arange(T)[None], T, config.window, documents)
            weights = attention_weights(q, k, mask, compute.dtype)
            if watch is not None:
                watch(weights)
            y = weighted_values(dropout(weights, config.dropout, key), v, compute)
        return y.swapaxes(1, 2)

    return positions, attend


def document_starts(
    tokens: Int[Array, "B T"], eot: int, indices: Positions, begun: Int[Array, "B 1"] | int = 0
) -> Int[Array, "B T"]:
    """Return the index in the row at which each token's document begins: the last `eot`, or `begun`."""
    return lax.cummax(jnp.where(tokens == eot, indices, begun), axis=1)


def attention_weights(
    q: Float[Array, "B H T C"], k: Float[Array, "B K S C"], mask: Bool[Array, "_ T S"], dtype: str
) -> Float[Array, "B K G T S"]:
    """Compute softmax(q k^T / sqrt(C)), float32, over the keys that the mask allows; G is H / K."""
    (B, H, T, C), K = q.shape, k.shape[1]
    q = q.reshape(B, K, H // K, T, C)
    scores = product("bkgtc,bksc->bkgts", q, k, dtype) / math.sqrt(C)
    return jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf))


def weighted_values(
    weights: Float[Array, "B K G T S"], v: Float[Array, "B K S C"], compute: Compute
) -> Float[Array, "B H T C"]:
    y = product("bkgts,bksc->bkgtc", weights, v, compute.dtype, compute.result)
    B, K, G, T, C = y.shape
    return y.reshape(B, K * G, T, C)


def causal_mask(
    positions: Int[Array, "_ T"],
    S: int,
    window: int | None = None,
    documents: Int[Array, "B T"] | None = None,  # where each query's document begins
) -> Bool[Array, "_ T S"]:
    """Return which of S keys each query reads: those up to its position, of its document, in its window."""
    positions, keys = positions[:, :, None], jnp.arange(S)
    mask = keys <= positions
    if window is not None:
        mask &= keys > positions - window
    if documents is not None:
        mask &= keys >= documents[:, :, None]
    return mask


def rotation(
    config, positions: Positions
) -> Callable[[Float[Array, "B heads T C"]], Float[Array, "B heads T C"]]:
    """Return the function that rotates queries or keys by their positions (arXiv:2104.09864), if rope is on.

    The layout is Llama's: components i and i + C/2 of a head form a pair. Angles are float32.
    """
    if config.position != "rope":
        return lambda x: x
    inv_freq = inverse_frequencies(config.head_size, config.rope_theta, config.rope_scaling)
    angles = positions.astype(np.float32)[:, None, :, None] * inv_freq  # (_, 1, T, C / 2)
    # NumPy's table is a constant of the program. XLA would compute another one for each row and head.
    xp = np if isinstance(angles, np.ndarray) else jnp
    cos, sin = xp.cos(angles), xp.sin(angles)

    def rotate(x):
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)

    return rotate


def inverse_frequencies(head_size: int, theta: float, scaling: float = 1.0) -> Float[np.ndarray, " half"]:
    """Return the radians per position by which each of the C/2 pairs turns.

    `scaling` is Llama 3's, for longer contexts (arXiv:2407.21783): pairs that turn less than once in the 8192
    tokens of its first training turn `scaling` times slower, those that turn more than four times stay.
    """
    inv_freq = theta ** (-np.arange(0, head_size, 2) / head_size)
    turns = inv_freq * 8192 / (2 * math.pi)
    stays = np.clip((turns - 1) / (4 - 1), 0, 1)
    return (inv_freq * (stays + (1 - stays) / scaling)).astype(np.float32)
