"""Choosing the next token from the model's logits: greedily, or at random from the likeliest.

`sample` divides the logits by the temperature, keeps the top k, keeps the top p of those, and draws: the
order of the transformers library. Its settings are Python numbers, so that what is off costs nothing in the
compiled program: whoever compiles `sample` makes them static arguments, and compiles once per run.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


def sample(
    logits: Float[Array, "B V"],
    keys: PRNGKeyArray,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Array, " B"]:
    """One token per row, int32. `keys` is (B,), a key per row, so that a row's draw is its own affair.

    `temperature` 0 takes the likeliest token; `top_k` is 1 to V, `top_p` above 0; None, and a `top_p` of 1 or
    more, keep all.
    """
    if temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = scale(logits, temperature)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if top_p is not None and top_p < 1:
        logits = keep_top_p(logits, top_p)
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)


def scale(logits: Float[Array, "B V"], temperature: float) -> Float[Array, "B V"]:
    """Logits whose distribution is sharper for temperatures below 1, flatter above.

    The largest becomes 0 first, which changes no probability, so that a tiny temperature cannot overflow it.
    """
    return (logits - logits.max(axis=-1, keepdims=True)) / temperature


def keep_top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """-inf for all but the k likeliest; tokens exactly as likely as the k-th stay as well."""
    least = jax.lax.top_k(logits, k)[0][:, -1:]  # (B, 1)
    return jnp.where(logits < least, -jnp.inf, logits)


def keep_top_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """-inf outside the nucleus (arXiv:1904.09751): the fewest likeliest tokens whose probabilities reach p.

    Tokens exactly as likely as the last of them stay as well.
    """
    ordered = jnp.sort(logits, axis=-1, descending=True)
    probabilities = jax.nn.softmax(ordered)
    likelier = jnp.cumsum(probabilities, axis=-1) - probabilities  # the probability of all tokens before
    least = jnp.where(likelier < p, ordered, jnp.inf).min(axis=-1, keepdims=True)  # (B, 1)
    return jnp.where(logits < least, -jnp.inf, logits)
