"""From a prompt to its continuation: `prefill` reads the prompt into a cache, and `decode` draws new tokens.

The cache holds the keys and values of earlier tokens, so that a new one costs one token's work. `prefill` and
`decode` take its memory for their result, and compile once for each shape. All rows of `generate` have the
same length. An engine's rows (generation/engine.py) come and go: a row of its cache is a slot. Both functions
then work on some slots, and on a bucket of each, its first tokens. W and R count rows.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from generation.sampling import GREEDY, PLAIN, Settings, Tally, penalize, sample
from model import GPT, Block, attention, causal_mask, document_starts, rotation
from parallel.mesh import constrain

CHUNK = 32  # a call of `decode` draws at most so many tokens for a row
PREFILL_CHUNK = 128  # tokens of a prompt that a call of `prefill` takes at most
LIKELIEST = 20  # tokens whose log-probabilities are returned: as many as OpenAI's API allows


class Decoder(NamedTuple):
    """A model prepared for decoding: taking its blocks apart takes as long as a token."""

    model: GPT  # has no blocks
    blocks: list[Block]

    @classmethod
    def of(cls, model: GPT) -> "Decoder":
        blocks = [jax.tree.map(itemgetter(i), model.blocks) for i in range(model.config.n_layer)]
        return cls(eqx.tree_at(lambda m: m.blocks, model, None), blocks)


class Cache(NamedTuple):
    """The keys and values of up to S tokens of B sequences, whose lengths the caller keeps.

    Their dtype is that of norms and products, float32 on a CPU: XLA would convert all of a bfloat16 cache to
    write it.
    """

    keys: list[Float[Array, "B K S C"]]  # one for each layer
    values: list[Float[Array, "B K S C"]]
    documents: Int[Array, "B 1 S 1"] | None = None  # where each token's document begins; None: the row is one

    @classmethod
    def empty(cls, model: GPT, B: int, S: int) -> "Cache":
        config = model.config
        K, C = config.kv_heads, config.head_size
        dtype = jax.eval_shape(model.ln_f, jnp.zeros((B, S, config.n_embd))).dtype
        keys, values = ([jnp.zeros((B, K, S, C), dtype) for _ in range(config.n_layer)] for _ in range(2))
        masked = config.document_start is not None
        return cls(keys, values, jnp.zeros((B, 1, S, 1), jnp.int32) if masked else None)


def shard_cache(cache: Cache) -> Cache:
    """Constrain the heads to be split over `tensor`, as all functions do that return a cache."""
    return jax.tree.map(lambda x: constrain(x, None, "tensor"), cache)


def forward_with_cache(
    decoder: Decoder, tokens: Int[Array, "B T"], cache: Cache, length: Int[Array, " B"]
) -> tuple[Float[Array, "B T D"], Cache]:
    """Compute features of tokens that follow the first `length` of each row, and add them to the cache."""
    (model, blocks), config = decoder, decoder.model.config
    indices = length[:, None] + jnp.arange(tokens.shape[1])  # (B, T)
    S, positions = cache.keys[0].shape[2], indices
    documents = starts = None
    if cache.documents is not None and config.document_start is not None:
        last = jnp.arange(S) == length[:, None] - 1  # nowhere in an empty row
        begun = jnp.where(last, cache.documents[:, 0, :, 0], 0).max(axis=1, keepdims=True)
        starts = document_starts(tokens, config.document_start, indices, begun)
        positions = indices - starts
        documents = write(cache.documents, starts[:, None, :, None], length)
    mask = causal_mask(indices, S, config.window, starts)
    rotate = rotation(config, positions)
    keys, values = jax.tree.map(jax.new_ref, (cache.keys, cache.values))  # arrays that may be written to

    @jax.named_scope("attention")
    def attend(keys, values, q, k, v, key=None):
        """Append new keys and values to those of a layer, and attend to them."""
        keys[...] = write(keys[...], rotate(k), length)
        values[...] = write(values[...], v, length)
        return attention(rotate(q), keys[...], values[...], mask)

    x = model.embed(tokens, positions)
    for i, block in enumerate(blocks):
        x = block(x, partial(attend, keys[i], values[i]))
    keys, values = jax.tree.map(lambda written: written[...], (keys, values))
    return model.ln_f(x), Cache(keys, values, documents)


def write(
    old: Shaped[Array, "B K S C"], new: Shaped[Array, "B K T C"], length: Int[Array, " B"]
) -> Shaped[Array, "B K S C"]:
    """Return `old` with `new` after the `length` of each row."""
    # One scatter: each turn of a loop over the rows takes a GPU 10 us, or 4 ms a token for GPT-2 and 16 rows.
    return jax.vmap(partial(lax.dynamic_update_slice_in_dim, axis=1))(old, new.astype(old.dtype), length)


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


# The settings that are the same in all rows. XLA then leaves out what they do not use. Otherwise a GPU waits
# for the host to decide: 16 rows of the quickstart take 0.12 ms a token instead of 0.19 on an H200.
Constants = tuple[float | None, ...]
DATA: Constants = (None,) * len(PLAIN)  # each row has its own


class Rows(NamedTuple):
    """The state of the cache's rows, and their settings, on the host."""

    token: Int[np.ndarray, " W"]  # the last token, which is not in the cache yet
    length: Int[np.ndarray, " W"]  # how many tokens are in the cache
    left: Int[np.ndarray, " W"]  # how many tokens this call draws
    made: Int[np.ndarray, " W"]  # how many tokens earlier calls drew
    key: Int[np.ndarray, "W 2"]  # the data of a random key
    settings: Float[np.ndarray, "W 7"]  # the columns are the fields of Settings
    tally: Tally
    wanted: Bool[np.ndarray, " W"]  # rows that want log-probabilities; None leaves them out of the program

    @classmethod
    def empty(cls, W: int, V: int) -> "Rows":
        one = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        key = np.zeros((W, *one.shape), one.dtype)
        settings = np.tile(np.array(GREEDY, np.float32), (W, 1))  # an unused row causes no work
        return cls(*np.zeros((4, W), np.int32), key, settings, Tally.empty(W, V), np.zeros(W, bool))


def limit_vocabulary(model: GPT, size: int) -> GPT:
    """Return a model that draws from the first `size` tokens alone: those that its tokenizer knows."""
    if size >= len(model.head):
        return model
    return eqx.tree_at(lambda m: m.lm_head, model, model.head[:size], is_leaf=lambda x: x is None)


@partial(jax.jit, static_argnames=("W", "S"))
def start(model: GPT, W: int, S: int) -> tuple[Decoder, Cache]:
    """Return the decoder of a model, and an empty cache of W rows of S tokens."""
    return Decoder.of(model), shard_cache(Cache.empty(model, W, S))


class Chunk(NamedTuple):
    """Tokens to prefill: of every row of the cache, or of some slots."""

    tokens: Int[np.ndarray, "R T"]
    length: Int[np.ndarray, " R"]  # how many tokens are in the cache before these
    slots: Int[np.ndarray, " R"] | None = None  # one may be repeated; None: all rows
    following: Int[np.ndarray, "R T"] | None = None  # the tokens whose log-probabilities are wanted


@partial(jax.jit, donate_argnames="cache", static_argnames="bucket")
def prefill(
    decoder: Decoder, cache: Cache, chunk: Chunk, bucket: int | None = None
) -> tuple[Likelihood | None, Cache]:
    """Cache a chunk of tokens. Padding is cached too, and overwritten before it is attended to."""
    chunk = jax.tree.map(jnp.asarray, chunk)
    where = slice(None) if chunk.slots is None else chunk.slots, slice(None), slice(bucket)
    part = jax.tree.map(lambda x: x[where], cache)
    x, part = forward_with_cache(decoder, chunk.tokens, part, chunk.length)
    cache = jax.tree.map(lambda x, y: x.at[where].set(y), cache, part)
    likelihood = None
    if chunk.following is not None:
        likelihood = Likelihood.of(chunk.following, decoder.model.logits(x))
    return likelihood, shard_cache(cache)


@partial(jax.jit, donate_argnames="cache")
def copy_slot(cache: Cache, source: Int[Array, ""], to: Int[Array, ""]) -> Cache:
    """Copy a slot's keys and values, for another answer to the same prompt."""
    return shard_cache(jax.tree.map(lambda x: x.at[to].set(x[source]), cache))


@partial(jax.jit, donate_argnames="cache", static_argnames=("bucket", "constants"))
def decode(
    decoder: Decoder,
    cache: Cache,
    rows: Rows,
    n: Int[Array, ""],
    bucket: int | None = None,
    constants: Constants = DATA,
) -> tuple[Int[Array, "W CHUNK"], Likelihood | None, Cache]:
    """Take the last token of each of the first W rows, and draw the next, n times.

    A row's tokens after its first `left` are not valid. A bucket is longer than any row becomes.
    """
    rows = jax.tree.map(jnp.asarray, rows)
    W, V = len(rows.token), len(decoder.model.head)
    columns = zip(constants, rows.settings.T[..., None], strict=True)
    settings = Settings(*(column if value is None else value for value, column in columns))

    def draw_next(i, state):
        (tokens, likelihood), token, part = state
        # A row that has drawn its tokens computes on beside others: it stays within the cache.
        length = jnp.minimum(rows.length + jnp.minimum(i, rows.left), part.keys[0].shape[2] - 1)
        x, part = forward_with_cache(decoder, token[:, None], part, length)
        logits = decoder.model.logits(x)  # (W, 1, V)
        keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(rows.key), rows.made + i)
        token = sample(penalize(logits[:, 0], rows.tally, tokens, i, settings), keys, settings)
        new = None
        if rows.wanted is not None:
            zeros = partial(Likelihood.zeros, W, 1, V)
            new = lax.cond(rows.wanted.any(), lambda: Likelihood.of(token[:, None], logits), zeros)
        put = partial(lax.dynamic_update_slice_in_dim, start_index=i, axis=1)
        return jax.tree.map(put, (tokens, likelihood), (token[:, None], new)), token, part

    drawn = (
        jnp.zeros((W, CHUNK), jnp.int32),
        None if rows.wanted is None else Likelihood.zeros(W, CHUNK, V),
    )
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
    settings: Settings = PLAIN,
    bias: Mapping[int, float] | None = None,
) -> Iterator[Int[np.ndarray, "B _"]]:
    """Yield the tokens that follow each row of the prompt as they are drawn: (B, n) int32, n varies.

    The prompt has at least one token. `bias` maps token ids to what is added to their logits. A row's tokens
    depend neither on the other rows nor on `max_new_tokens`. Where a text grows past block_size, its last
    block_size / 2 tokens become the context: one token in block_size / 2 costs a prefill.
    """
    (B, P), S, V = prompt.shape, model.config.block_size, len(model.head)
    decoder, cache = start(model, B, min(S, 1 << (P + max_new_tokens).bit_length()))
    rows = Rows.empty(B, V)._replace(wanted=None)  # ty: ignore[invalid-argument-type]
    rows.key[:] = keys_of_rows(key, B)
    rows.settings[:] = settings
    # PLAIN's and GREEDY's values. Any other would be compiled anew, and x / 0.8 may be rounded otherwise.
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
        tokens, _, cache = decode(decoder, cache, rows, np.int32(n), constants=constants)
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
        _, cache = prefill(decoder, cache, Chunk(chunk, np.full(B, first, np.int32)))
    return cache


@partial(jax.jit, static_argnames="n")
def keys_of_rows(key: PRNGKeyArray, n: int) -> Int[Array, "n 2"]:
    """Return the data of a key for each row, by one program: a GPU's host would take 1 ms for each alone."""
    return jax.random.key_data(jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(n)))
