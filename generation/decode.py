"""From a prompt to its continuation: `prefill` reads tokens into the cache, `decode` draws new ones.

Both donate the cache, and are compiled once for a shape: settings are data. The rows of `generate` have one
length; those of generation/engine.py come and go.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from generation.cache import Cache, forward_with_cache, shard_cache, unstack_blocks
from generation.sampling import sample
from layers.products import is_linear
from model import GPT, Block

CHUNK = 32  # tokens that a call of `decode` draws for a row, at most
PREFILL_CHUNK = 128  # tokens of a prompt that a call of `prefill` reads, at most
LIKELIEST = 20  # tokens whose log-probabilities are returned: as many as OpenAI's API allows


class Decoder(eqx.Module):
    """A model prepared for decoding. Tokens from `vocab_size` on pad the vocabulary, and are never drawn."""

    model: GPT
    blocks: list[Block]
    vocab_size: int = eqx.field(static=True)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        return self.model.logits(x)[..., : self.vocab_size]


class Rows(NamedTuple):
    """The state of W rows of the cache, and their settings, on the host."""

    token: Int[np.ndarray, " W"]  # the last token, which is not in the cache yet
    length: Int[np.ndarray, " W"]  # tokens in the cache
    left: Int[np.ndarray, " W"]  # tokens to draw in this call; 0: none
    made: Int[np.ndarray, " W"]  # tokens drawn in earlier calls
    key: Int[np.ndarray, "W 2"]  # the data of its random key
    temperature: Float[np.ndarray, " W"]
    top_k: Int[np.ndarray, " W"]
    top_p: Float[np.ndarray, " W"]
    wants_logprobs: Int[np.ndarray, " W"]  # 0 or 1

    @classmethod
    def empty(cls, slots: int) -> "Rows":
        token, length, left, made, top_k, wants_logprobs = np.zeros((6, slots), np.int32)
        temperature, top_p = np.zeros((2, slots), np.float32)
        one = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        key = np.zeros((slots, *one.shape), one.dtype)
        return cls(token, length, left, made, key, temperature, top_k + 1, top_p + 1, wants_logprobs)


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


@partial(jax.jit, static_argnames=("slots", "vocab_size"))
def start(model: GPT, slots: int, vocab_size: int) -> tuple[Decoder, Cache]:
    """Return the decoder of a model, and an empty cache."""
    cache = Cache.empty(model.config, slots)
    model = cast_products(model)
    return Decoder(model, unstack_blocks(model), vocab_size), shard_cache(cache)


def cast_products(model: GPT) -> GPT:
    """Return the model with the weights of its products in their dtype. It computes the same, to the bit."""
    dtype = model.config.compute.dtype

    def cast(x):
        return eqx.tree_at(lambda x: x.weight, x, x.weight.astype(dtype)) if is_linear(x) else x

    blocks = jax.tree.map(cast, model.blocks, is_leaf=is_linear)
    head = model.head.astype(dtype)  # also if tied: the embedding table stays float32
    return eqx.tree_at(lambda m: (m.blocks, m.lm_head), model, (blocks, head), is_leaf=lambda x: x is None)


@partial(jax.jit, donate_argnames="cache", static_argnames="bucket")
def prefill(
    decoder: Decoder,
    cache: Cache,
    slots: Int[Array, " R"],
    tokens: Int[Array, "R T"],
    length: Int[Array, " R"],
    following: Int[Array, "R T"] | None,
    bucket: int,
) -> tuple[Likelihood | None, Cache]:
    """Read tokens into the first `bucket` tokens of the cache of R slots, after the `length` of each.

    Padding is read too, and overwritten before it matters. A slot may be repeated, with the same tokens.
    The result has the log-probabilities of the `following` tokens, if they are given.
    """
    part = jax.tree.map(lambda x: x[slots, :, :bucket], cache)
    x, part = forward_with_cache(decoder.model, decoder.blocks, tokens, part, length)

    def put_back(i, cache):
        slot, row = slots[i], jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i, 1), part)
        return jax.tree.map(lambda x, y: lax.dynamic_update_slice(x, y, (slot, 0, 0, 0)), cache, row)

    cache = lax.fori_loop(0, len(slots), put_back, cache)
    likelihood = None if following is None else Likelihood.of(following, decoder.logits(x))
    return likelihood, shard_cache(cache)


@partial(jax.jit, donate_argnames="cache", static_argnames="bucket")
def decode(
    decoder: Decoder, cache: Cache, rows: Rows, n: Int[Array, ""], bucket: int
) -> tuple[Int[Array, "W CHUNK"], Likelihood, Cache]:
    """Read the last token and draw the next, n times, for the first W slots.

    `bucket` is longer than any row becomes, or block_size. Of a row's new tokens, the first `left` are valid.
    """
    rows = jax.tree.map(jnp.asarray, rows)
    W, V, row_keys = len(rows.token), decoder.vocab_size, jax.random.wrap_key_data(rows.key)

    def draw_next(i, state):
        drawn, token, part = state
        length = rows.length + jnp.minimum(i, rows.left)
        x, part = forward_with_cache(decoder.model, decoder.blocks, token[:, None], part, length)
        logits = decoder.logits(x)  # (W, 1, V)
        keys = jax.vmap(jax.random.fold_in)(row_keys, rows.made + i)
        token = sample(logits[:, 0], keys, rows.temperature, rows.top_k, rows.top_p)
        likelihood = lax.cond(
            rows.wants_logprobs.any(),
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


def generate(
    model: GPT,
    prompt: Int[np.ndarray, "B P"],
    *,
    key: PRNGKeyArray,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    vocab_size: int | None = None,
) -> Iterator[Int[np.ndarray, "B _"]]:
    """Yield the tokens that follow each row of the prompt as they are drawn: (B, n) int32, n varies.

    The prompt has at least one token. A row's tokens depend neither on the other rows nor on
    `max_new_tokens`. Where a text grows past block_size, its last block_size / 2 tokens become the context:
    one token in block_size / 2 costs a prefill.
    """
    (B, P), S, V = prompt.shape, model.config.block_size, vocab_size or model.config.vocab_size
    bucket = min(S, 1 << (P + max_new_tokens).bit_length())
    decoder, cache = start(model, B, V)
    rows = Rows.empty(B)
    rows.key[:] = [jax.random.key_data(row_key) for row_key in keys_of_rows(key, B)]
    rows.temperature[:] = temperature
    rows.top_k[:] = min(top_k or V, V)
    rows.top_p[:] = 1.0 if top_p is None else top_p
    context, made, unread = prompt[:, -S:], 0, True
    while made < max_new_tokens:
        if unread:
            cache = read(decoder, cache, context[:, :-1], bucket)  # `decode` reads the last token
        rows.token[:] = context[:, -1]
        rows.length[:] = length = context.shape[1] - 1
        rows.made[:] = made
        rows.left[:] = n = min(CHUNK if made else 1, max_new_tokens - made, S - length)
        tokens, _, cache = decode(decoder, cache, rows, np.int32(n), bucket)
        new = np.asarray(tokens)[:, :n]
        yield new
        made += n
        context = np.concatenate([context, new], axis=1)
        unread = context.shape[1] > S
        if unread:
            context = context[:, -max(1, S // 2) :]


def read(decoder: Decoder, cache: Cache, tokens: Int[np.ndarray, "B P"], bucket: int) -> Cache:
    """Prefill the cache with the tokens of all rows, in chunks."""
    B, P = tokens.shape
    T = min(bucket, PREFILL_CHUNK, 1 << max(0, P - 1).bit_length())
    for i in range(0, P, T):
        first = min(i, bucket - T)  # the last chunk may begin among tokens that have been read
        chunk = tokens[:, first : first + T]
        chunk = np.pad(chunk, ((0, 0), (0, T - chunk.shape[1])))
        slots, length = np.arange(B, dtype=np.int32), np.full(B, first, np.int32)
        _, cache = prefill(decoder, cache, slots, chunk, length, None, bucket)
    return cache


def keys_of_rows(key: PRNGKeyArray, n: int) -> list[PRNGKeyArray]:
    """Return the keys of n continuations of one request."""
    return [jax.random.fold_in(key, row) for row in range(n)]
