"""`prefill` and `decode` for an engine: a cache whose rows, its slots, are prefilled and extended apart.

What generation/decode.py does to the entire cache, these do to some slots and to the first `bucket` tokens
of each. They also return log-probabilities, if a request wants them.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from generation.cache import Cache, forward_with_cache, shard_cache
from generation.decode import CHUNK, Decoder, Rows, draw_token

LIKELIEST = 20  # tokens whose log-probabilities are returned: as many as OpenAI's API allows


class Likelihood(NamedTuple):
    """Log-probabilities of tokens and of the likeliest ones, before temperature, top_k and top_p."""

    chosen: Float[Array | np.ndarray, "W T"]
    likeliest: Float[Array | np.ndarray, "W T 20"]  # fewer, if the vocabulary has fewer
    tokens: Int[Array | np.ndarray, "W T 20"]  # the likeliest

    @classmethod
    def zeros(cls, W: int, T: int, vocab_size: int) -> "Likelihood":
        shape = (W, T, min(LIKELIEST, vocab_size))
        return cls(jnp.zeros((W, T)), jnp.zeros(shape), jnp.zeros(shape, jnp.int32))

    @classmethod
    def of(cls, tokens: Int[Array, "W T"], logits: Float[Array, "W T V"]) -> "Likelihood":
        logprobs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logprobs, tokens[..., None], axis=-1)[..., 0]
        return cls(chosen, *lax.top_k(logprobs, min(LIKELIEST, logits.shape[-1])))


@partial(jax.jit, donate_argnames="cache", static_argnames="bucket")
def prefill_slots(
    decoder: Decoder,
    cache: Cache,
    slots: Int[Array, " R"],  # one may be repeated, with the same tokens
    tokens: Int[Array, "R T"],
    length: Int[Array, " R"],
    following: Int[Array, "R T"] | None,
    bucket: int,
) -> tuple[Likelihood | None, Cache]:
    """Do as `prefill` for R slots. Return also log-probabilities of the `following` tokens, if given."""
    part = jax.tree.map(lambda x: x[slots, :, :bucket], cache)
    x, part = forward_with_cache(*decoder, tokens, part, length)
    cache = jax.tree.map(lambda x, y: x.at[slots, :, :bucket].set(y), cache, part)
    likelihood = None if following is None else Likelihood.of(following, decoder.model.logits(x))
    return likelihood, shard_cache(cache)


@partial(jax.jit, donate_argnames="cache")
def copy_slot(cache: Cache, source: Int[Array, ""], to: Int[Array, ""]) -> Cache:
    """Copy a slot's keys and values, for another answer to the same prompt."""

    def copy(x):
        return lax.dynamic_update_slice_in_dim(x, lax.dynamic_slice_in_dim(x, source, 1), to, axis=0)

    return shard_cache(jax.tree.map(copy, cache))


@partial(jax.jit, donate_argnames="cache", static_argnames="bucket")
def decode_slots(
    decoder: Decoder,
    cache: Cache,
    rows: Rows,
    wants_logprobs: Bool[Array, " W"],
    n: Int[Array, ""],
    bucket: int,
) -> tuple[Int[Array, "W CHUNK"], Likelihood, Cache]:
    """Do as `decode` for the first W slots. `bucket` is longer than any row becomes, or block_size."""
    W, V = len(rows.token), len(decoder.model.head)

    def draw_next(i, state):
        drawn, token, part = state
        token, logits, part = draw_token(decoder, part, rows, drawn[0], token, i)
        likelihood = lax.cond(
            wants_logprobs.any(),
            Likelihood.of,
            lambda *_: Likelihood.zeros(W, 1, V),
            token[:, None],
            logits,
        )
        put = partial(lax.dynamic_update_slice_in_dim, start_index=i, axis=1)
        return jax.tree.map(put, drawn, (token[:, None], likelihood)), token, part

    drawn = jnp.zeros((W, CHUNK), jnp.int32), Likelihood.zeros(W, CHUNK, V)
    part = jax.tree.map(lambda x: x[:W, :, :bucket], cache)
    (tokens, likelihood), _, part = lax.fori_loop(0, n, draw_next, (drawn, rows.token, part))
    cache = jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, 0, axis=0), cache, part)
    return tokens, likelihood, shard_cache(cache)
