"""From a prompt to its continuation: `prefill` reads tokens into the cache, `decode` draws new ones.

Both take the cache's memory for their result, and compile once for each shape, because settings are data. All
rows of `generate` have the same length. Those of generation/engine.py come and go (generation/slots.py).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from generation.cache import Cache, forward_with_cache, shard_cache, unstack_blocks
from generation.sampling import GREEDY, PLAIN, Settings, Tally, penalize, sample
from model import GPT, Block, is_linear

CHUNK = 32  # a call of `decode` draws at most so many tokens for a row
PREFILL_CHUNK = 128  # a call of `prefill` reads at most so many tokens of a prompt


class Decoder(NamedTuple):
    """A model prepared for decoding."""

    model: GPT  # has no blocks
    blocks: list[Block]


class Rows(NamedTuple):
    """The state of the cache's rows, and their settings, on the host."""

    token: Int[np.ndarray, " W"]  # the last token, which is not in the cache yet
    length: Int[np.ndarray, " W"]  # how many tokens are in the cache
    left: Int[np.ndarray, " W"]  # how many tokens this call draws
    made: Int[np.ndarray, " W"]  # how many tokens earlier calls drew
    key: Int[np.ndarray, "W 2"]  # the data of a random key
    settings: Float[np.ndarray, "W 7"]  # the columns are the fields of Settings
    tally: Tally

    @classmethod
    def empty(cls, W: int, V: int) -> "Rows":
        one = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        key = np.zeros((W, *one.shape), one.dtype)
        settings = np.tile(np.array(GREEDY, np.float32), (W, 1))  # an unused row causes no work
        return cls(*np.zeros((4, W), np.int32), key, settings, Tally.empty(W, V))


@partial(jax.jit, static_argnames=("W", "S", "vocab_size"))
def start(model: GPT, W: int, S: int, vocab_size: int) -> tuple[Decoder, Cache]:
    """Return the decoder of a model, and an empty cache of W rows of S tokens."""
    return prepare(model, vocab_size), shard_cache(Cache.empty(model.config, W, S))


def prepare(model: GPT, vocab_size: int) -> Decoder:
    """Cast the weights of products once, as each product would, and cut off the vocabulary's padding."""
    dtype = model.config.compute.dtype

    def cast(x):
        return eqx.tree_at(lambda x: x.weight, x, x.weight.astype(dtype)) if is_linear(x) else x

    blocks = jax.tree.map(cast, unstack_blocks(model), is_leaf=is_linear)
    head = model.head[:vocab_size].astype(dtype)  # a copy, as the embedding table stays float32
    rest = eqx.tree_at(lambda m: (m.blocks, m.lm_head), model, (None, head), is_leaf=lambda x: x is None)
    return Decoder(rest, blocks)


@partial(jax.jit, donate_argnames="cache")
def prefill(decoder: Decoder, cache: Cache, tokens: Int[Array, "W T"], length: Int[Array, " W"]) -> Cache:
    """Read tokens after the `length` of each row. Padding is read too, and overwritten before it matters."""
    _, cache = forward_with_cache(*decoder, tokens, cache, length)
    return shard_cache(cache)


@partial(jax.jit, donate_argnames="cache")
def decode(
    decoder: Decoder, cache: Cache, rows: Rows, n: Int[Array, ""]
) -> tuple[Int[Array, "W CHUNK"], Cache]:
    """Read the last token and draw the next, n times. Only the first `left` new tokens of a row are valid."""

    def draw_next(i, state):
        tokens, token, cache = state
        token, _, cache = draw_token(decoder, cache, rows, tokens, token, i)
        return tokens.at[:, i].set(token), token, cache

    tokens = jnp.zeros((len(rows.token), CHUNK), jnp.int32)
    tokens, _, cache = lax.fori_loop(0, n, draw_next, (tokens, rows.token, cache))
    return tokens, shard_cache(cache)


def draw_token(
    decoder: Decoder,
    cache: Cache,
    rows: Rows,
    tokens: Int[Array, "W CHUNK"],
    token: Int[Array, " W"],
    i: Int[Array, ""],
) -> tuple[Int[Array, " W"], Float[Array, "W 1 V"], Cache]:
    """Read each row's last token, and draw the next after i `tokens` of this call. Return its logits, too."""
    rows = jax.tree.map(jnp.asarray, rows)
    length = rows.length + jnp.minimum(i, rows.left)
    x, cache = forward_with_cache(*decoder, token[:, None], cache, length)
    logits = decoder.model.logits(x)
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(rows.key), rows.made + i)
    settings = Settings(*rows.settings.T)
    penalized = penalize(logits[:, 0], rows.tally, tokens, i, settings)
    return sample(penalized, keys, settings), logits, cache


def generate(
    model: GPT,
    prompt: Int[np.ndarray, "B P"],
    *,
    key: PRNGKeyArray,
    max_new_tokens: int,
    settings: Settings = PLAIN,
    bias: Mapping[int, float] | None = None,
    vocab_size: int | None = None,
) -> Iterator[Int[np.ndarray, "B _"]]:
    """Yield the tokens that follow each row of the prompt as they are drawn: (B, n) int32, n varies.

    The prompt has at least one token. `bias` maps token ids to what is added to their logits. A row's tokens
    depend neither on the other rows nor on `max_new_tokens`. Where a text grows past block_size, its last
    block_size / 2 tokens become the context: one token in block_size / 2 costs a prefill.
    """
    (B, P), S, V = prompt.shape, model.config.block_size, vocab_size or model.config.vocab_size
    decoder, cache = start(model, B, min(S, 1 << (P + max_new_tokens).bit_length()), V)
    rows = Rows.empty(B, V)
    rows.key[:] = [jax.random.key_data(row_key) for row_key in keys_of_rows(key, B)]
    rows.settings[:] = settings
    for token, added in (bias or {}).items():
        rows.tally.bias[:, token] = added
    np.put_along_axis(rows.tally.prompt, prompt, True, axis=1)
    context, made, unread = prompt[:, -S:], 0, True
    while made < max_new_tokens:
        if unread:
            cache = read(decoder, cache, context[:, :-1])  # `decode` reads the last token
        rows.token[:] = context[:, -1]
        rows.length[:] = length = context.shape[1] - 1
        rows.made[:] = made
        rows.left[:] = n = min(CHUNK if made else 1, max_new_tokens - made, S - length)
        tokens, cache = decode(decoder, cache, rows, np.int32(n))
        new = np.asarray(tokens)[:, :n]
        yield new
        made += n
        np.add.at(rows.tally.drawn, (np.arange(B)[:, None], new), 1)
        context = np.concatenate([context, new], axis=1)
        unread = context.shape[1] > S
        if unread:
            context = context[:, -max(1, S // 2) :]


def read(decoder: Decoder, cache: Cache, tokens: Int[np.ndarray, "B P"]) -> Cache:
    """Prefill the cache with the tokens of all rows, in chunks."""
    (B, P), S = tokens.shape, cache.keys[0].shape[2]
    T = min(S, PREFILL_CHUNK, 1 << max(0, P - 1).bit_length())
    for i in range(0, P, T):
        first = min(i, S - T)  # the last chunk may begin with tokens that are in the cache already
        chunk = tokens[:, first : first + T]
        chunk = np.pad(chunk, ((0, 0), (0, T - chunk.shape[1])))
        cache = prefill(decoder, cache, chunk, np.full(B, first, np.int32))
    return cache


def keys_of_rows(key: PRNGKeyArray, n: int) -> list[PRNGKeyArray]:
    """Return the keys of n continuations of one request."""
    return [jax.random.fold_in(key, row) for row in range(n)]
