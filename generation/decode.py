"""From a prompt to its continuation: `prefill` fills the cache with its tokens, `decode` draws new ones.

Both take the cache's memory for their result, and compile once for each shape: each row has settings of its
own, which are data, and a setting that no row uses costs no time. transformers and OpenAI's API define them.
All rows of `generate` have the same length. Those of generation/engine.py come and go (generation/slots.py).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from generation.cache import Cache, forward_with_cache, shard_cache, unstack_blocks
from model import GPT, Block

CHUNK = 32  # a call of `decode` draws at most so many tokens for a row
PREFILL_CHUNK = 128  # tokens of a prompt that a call of `prefill` takes at most

Setting = float | Float[Array, "B 1"]


class Settings(NamedTuple):
    """How a request's tokens are drawn, or those of B rows. The defaults change no probability."""

    temperature: Setting = 1.0  # 0: the likeliest token
    top_k: Setting = 0.0  # below 1: all
    top_p: Setting = 1.0
    min_p: Setting = 0.0
    repetition_penalty: Setting = 1.0
    presence_penalty: Setting = 0.0
    frequency_penalty: Setting = 0.0


PLAIN, GREEDY = Settings(), Settings(temperature=0)

# The settings that are the same in all rows. XLA then leaves out what they do not use, where a GPU would wait
# for the host, which decides: 16 rows of the quickstart take 0.12 ms a token instead of 0.19 on an H200.
Constants = tuple[float | None, ...]
DATA: Constants = (None,) * len(PLAIN)  # each row has its own


class Tally(NamedTuple):
    """Counts and biases that change the logits of B rows, as their settings say."""

    bias: Float[np.ndarray, "B V"]  # is added to the logits
    prompt: Bool[np.ndarray, "B V"]  # whether a token is in the prompt
    drawn: Int[np.ndarray, "B V"]  # how often it was drawn

    @classmethod
    def empty(cls, B: int, V: int) -> "Tally":
        return cls(*(np.zeros((B, V), dtype) for dtype in (np.float32, bool, np.int32)))


def penalize(
    logits: Float[Array, "B V"],
    tally: Tally,
    tokens: Int[Array, "B T"],
    n: Int[Array, ""],
    settings: Settings,
) -> Float[Array, "B V"]:
    """Add the bias, and penalize tokens of the text. The first n `tokens` were drawn after the tally."""
    repetition, presence, frequency = map(jnp.asarray, settings[-3:])

    def penalized(logits):
        rows, new = jnp.arange(len(tokens))[:, None], jnp.arange(tokens.shape[1]) < n
        drawn = jnp.asarray(tally.drawn).at[rows, tokens].add(new)
        repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)  # arXiv:1909.05858
        logits = jnp.where(tally.prompt | (drawn > 0), repeated, logits)
        return logits - frequency * drawn - presence * (drawn > 0)

    used = (repetition != 1) | (presence != 0) | (frequency != 0)
    return lax.cond(used.any(), penalized, lambda logits: logits, logits + tally.bias)


def sample(logits: Float[Array, "B V"], keys: PRNGKeyArray, settings: Settings) -> Int[Array, " B"]:
    """Draw a token for each row, with its key and settings."""
    greedy = jnp.argmax(logits, axis=-1, keepdims=True)
    warm = jnp.asarray(settings.temperature) > 0

    def draw():
        return jax.vmap(jax.random.categorical)(keys, drawn_from(logits, settings))[:, None]

    return jnp.where(warm, lax.cond(warm.any(), draw, lambda: greedy), greedy)[:, 0].astype(jnp.int32)


def drawn_from(logits: Float[Array, "B V"], settings: Settings) -> Float[Array, "B V"]:
    """Return the scaled logits of the kept tokens, -inf for others. A temperature of 0 counts as 1."""
    temperature, top_k, top_p, min_p = map(jnp.asarray, settings[:4])
    kept = scale(logits, jnp.where(temperature == 0, 1, temperature))
    top_k = jnp.where(top_k > 0, top_k, jnp.inf)
    kept = lax.cond((top_k < logits.shape[1]).any(), keep_top_k, lambda kept, _: kept, kept, top_k)
    kept = lax.cond((top_p < 1).any(), keep_top_p, lambda kept, _: kept, kept, top_p)
    return lax.cond((min_p > 0).any(), keep_min_p, lambda kept, _: kept, kept, min_p)


def scale(logits: Float[Array, "B V"], temperature: Setting) -> Float[Array, "B V"]:
    """Divide logits by the temperature, after subtracting the largest one, which could overflow."""
    return (logits - logits.max(axis=-1, keepdims=True)) / temperature


def keep_top_k(logits: Float[Array, "B V"], k: Setting) -> Float[Array, "B V"]:
    """Set all but the k largest logits to -inf. Ties with the k-th are kept."""
    kept = likeliest(logits, jnp.ones_like(logits), k)
    return jnp.where(kept, logits, -jnp.inf)


def keep_top_p(logits: Float[Array, "B V"], p: Setting) -> Float[Array, "B V"]:
    """Set all but the likeliest tokens that make up p (arXiv:1904.09751), and ties, to -inf. 0 keeps one."""
    kept = likeliest(logits, jax.nn.softmax(logits), jnp.maximum(p, 1e-9)) | (p >= 1)
    return jnp.where(kept, logits, -jnp.inf)


def keep_min_p(logits: Float[Array, "B V"], p: Setting) -> Float[Array, "B V"]:
    """Set tokens less likely than p times the likeliest one (arXiv:2407.01082) to -inf. 0 keeps all."""
    return jnp.where(logits >= logits.max(axis=-1, keepdims=True) + jnp.log(p), logits, -jnp.inf)


def likeliest(
    logits: Float[Array, "B V"], weights: Float[Array, "B V"], enough: Setting
) -> Bool[Array, "B V"]:
    """Return the fewest likeliest tokens whose weights add up to `enough`, or all."""
    # The lowest logit that is kept is found bit by bit: 32 sums cost less than sorting V numbers.
    highest, bits = jnp.uint32(1 << 31), lax.bitcast_convert_type(logits, jnp.uint32)
    order = jnp.where(bits < highest, bits | highest, ~bits)  # (B, V), ordered as the logits

    def next_bit(i, least):  # (B, 1)
        higher = least | (highest >> i)
        weight = jnp.where(order >= higher, weights, 0).sum(axis=-1, keepdims=True)
        return jnp.where(weight >= enough, higher, least)

    return order >= lax.fori_loop(0, 32, next_bit, jnp.zeros((len(logits), 1), jnp.uint32))


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
    return prepare(model, vocab_size), shard_cache(Cache.empty(model, W, S))


def prepare(model: GPT, vocab_size: int) -> Decoder:
    """Take the blocks apart, which takes as long as a token, and cut off the vocabulary's padding."""
    parts = None, model.head[:vocab_size]
    rest = eqx.tree_at(lambda m: (m.blocks, m.lm_head), model, parts, is_leaf=lambda x: x is None)
    return Decoder(rest, unstack_blocks(model))


@partial(jax.jit, donate_argnames="cache")
def prefill(decoder: Decoder, cache: Cache, tokens: Int[Array, "W T"], length: Int[Array, " W"]) -> Cache:
    """Cache tokens after the `length` of each row. Padding is cached too, and overwritten in time."""
    _, cache = forward_with_cache(*decoder, tokens, cache, length)
    return shard_cache(cache)


@partial(jax.jit, donate_argnames="cache", static_argnames="constants")
def decode(
    decoder: Decoder, cache: Cache, rows: Rows, n: Int[Array, ""], constants: Constants = DATA
) -> tuple[Int[Array, "W CHUNK"], Cache]:
    """Take the last token and draw the next, n times. Only the first `left` new tokens of a row are valid."""

    def draw_next(i, state):
        tokens, token, cache = state
        token, _, cache = draw_token(decoder, cache, rows, tokens, token, i, constants)
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
    constants: Constants = DATA,
) -> tuple[Int[Array, " W"], Float[Array, "W 1 V"], Cache]:
    """Take each row's last token, and draw the next after i `tokens` of this call. Return its logits, too."""
    rows = jax.tree.map(jnp.asarray, rows)
    length = rows.length + jnp.minimum(i, rows.left)
    x, cache = forward_with_cache(*decoder, token[:, None], cache, length)
    logits = decoder.model.logits(x)
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(rows.key), rows.made + i)
    columns = zip(constants, rows.settings.T[..., None], strict=True)
    settings = Settings(*(column if value is None else value for value, column in columns))
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
    rows.key[:] = key_data_of_rows(key, B)
    rows.settings[:] = settings
    # Values that change nothing: each other one would be compiled anew, and x / 0.8 may be rounded otherwise.
    choices = zip(settings, PLAIN, GREEDY, strict=True)
    constants = tuple(x if x in (plain, greedy) else None for x, plain, greedy in choices)
    for token, added in (bias or {}).items():
        rows.tally.bias[:, token] = added
    np.put_along_axis(rows.tally.prompt, prompt, True, axis=1)
    context, made, unread = prompt[:, -S:], 0, True
    while made < max_new_tokens:
        if unread:
            cache = read(decoder, cache, context[:, :-1])  # `decode` takes the last token
        rows.token[:] = context[:, -1]
        rows.length[:] = length = context.shape[1] - 1
        rows.made[:] = made
        rows.left[:] = n = min(CHUNK if made else 1, max_new_tokens - made, S - length)
        tokens, cache = decode(decoder, cache, rows, np.int32(n), constants)
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


@partial(jax.jit, static_argnames="n")
def key_data_of_rows(key: PRNGKeyArray, n: int) -> Int[Array, "n 2"]:
    """Return the data of `keys_of_rows`, by one program: for each row alone, a GPU's host would take 1 ms."""
    return jax.random.key_data(jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(n)))


def keys_of_rows(key: PRNGKeyArray, n: int) -> list[PRNGKeyArray]:
    """Return the keys of n continuations of one request."""
    return [jax.random.fold_in(key, row) for row in range(n)]
