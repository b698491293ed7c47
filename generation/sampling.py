"""Choose the next token from a model's logits: greedily, or at random from the likeliest.

`sample` divides the logits by the temperature, keeps the top k, keeps the top p of those, and draws. This is
the order of the transformers library. The settings are Python numbers, so that a setting that is off costs
nothing in the compiled program. A caller that compiles `sample` makes them static arguments.
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
    """Draw a token for each row of logits, int32. `keys` has the shape (B,), so that no row affects another.

    A `temperature` of 0 takes the likeliest token. `top_k` is from 1 to V and `top_p` is above 0; None keeps
    all tokens, and so does a `top_p` of 1 or more.
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
    """Divide logits by the temperature: the distribution is sharper for a value below 1, flatter above.

    The largest logit is subtracted first, which changes no probability, so that a tiny temperature cannot
    overflow it.
    """
    return (logits - logits.max(axis=-1, keepdims=True)) / temperature


def keep_top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """Set all but the k largest logits to -inf. Tokens exactly as likely as the k-th are kept as well."""
    least = jax.lax.top_k(logits, k)[0][:, -1:]  # (B, 1)
    return jnp.where(logits < least, -jnp.inf, logits)


def keep_top_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """Set all logits outside the nucleus to -inf (Holtzman et al., arXiv:1904.09751).

    The nucleus is the smallest set of likeliest tokens whose probabilities add up to p or more. Tokens
    exactly as likely as the last of them are kept as well.
    """
    ordered = jnp.sort(logits, axis=-1, descending=True)
    probabilities = jax.nn.softmax(ordered)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities  # the probability of all likelier tokens
    least = jnp.where(before < p, ordered, jnp.inf).min(axis=-1, keepdims=True)  # (B, 1)
    return jnp.where(logits < least, -jnp.inf, logits)
