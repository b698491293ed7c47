"""Draw the next token from a model's logits: temperature, top k, top p, as in the transformers library.

Each row has its own settings, as data, so that one program serves all. What no row asks for is not computed.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped


def sample(
    logits: Float[Array, "B V"],
    keys: PRNGKeyArray,
    temperature: Float[Array, " B"],
    top_k: Int[Array, " B"],
    top_p: Float[Array, " B"],
) -> Int[Array, " B"]:
    """Draw a token for each row, with its key and settings. A `temperature` of 0 takes the likeliest."""
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def draw():
        kept = drawn_from(logits, temperature, top_k, top_p)
        return jax.vmap(jax.random.categorical)(keys, kept).astype(jnp.int32)

    drawn = lax.cond((temperature > 0).any(), draw, lambda: greedy)
    return jnp.where(temperature == 0, greedy, drawn)


def drawn_from(
    logits: Float[Array, "B V"],
    temperature: Float[Array, " B"],
    top_k: Int[Array, " B"],
    top_p: Float[Array, " B"],
) -> Float[Array, "B V"]:
    """Return the scaled logits of the kept tokens, -inf for others. A temperature of 0 counts as 1."""
    kept = scale(logits, jnp.where(temperature == 0, 1, temperature))
    kept = lax.cond((top_k < logits.shape[1]).any(), keep_top_k, lambda kept, _: kept, kept, top_k)
    return lax.cond((top_p < 1).any(), keep_top_p, lambda kept, _: kept, kept, top_p)


def scale(logits: Float[Array, "B V"], temperature: Float[Array, " B"] | float) -> Float[Array, "B V"]:
    """Divide logits by the temperature, after subtracting the largest one, which could overflow."""
    return (logits - logits.max(axis=-1, keepdims=True)) / column(temperature)


def keep_top_k(logits: Float[Array, "B V"], k: Int[Array, " B"] | int) -> Float[Array, "B V"]:
    """Set all but the k largest logits to -inf. Ties with the k-th are kept."""
    kept = likeliest(logits, jnp.ones_like(logits), column(k))
    return jnp.where(kept, logits, -jnp.inf)


def keep_top_p(logits: Float[Array, "B V"], p: Float[Array, " B"] | float) -> Float[Array, "B V"]:
    """Set all but the likeliest tokens that make up p (arXiv:1904.09751), and ties, to -inf. 1 keeps all."""
    kept = likeliest(logits, jax.nn.softmax(logits), column(p)) | (column(p) >= 1)
    return jnp.where(kept, logits, -jnp.inf)


def likeliest(
    logits: Float[Array, "B V"], weights: Float[Array, "B V"], enough: Float[Array, "_ 1"] | Int[Array, "_ 1"]
) -> Bool[Array, "B V"]:
    """Return the fewest likeliest tokens whose weights add up to `enough`, or all.

    The lowest of their logits is found bit by bit: 32 sums cost less than sorting V numbers.
    """
    highest, bits = jnp.uint32(1 << 31), lax.bitcast_convert_type(logits, jnp.uint32)
    order = jnp.where(bits < highest, bits | highest, ~bits)  # (B, V), ordered as the logits

    def next_bit(i, least):  # (B, 1)
        higher = least | (highest >> i)
        weight = jnp.where(order >= higher, weights, 0).sum(axis=-1, keepdims=True)
        return jnp.where(weight >= enough, higher, least)

    return order >= lax.fori_loop(0, 32, next_bit, jnp.zeros((len(logits), 1), jnp.uint32))


def column(setting: Array | float) -> Shaped[Array, "_ 1"]:
    return jnp.reshape(setting, (-1, 1))
