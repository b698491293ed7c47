"""The two compiled functions of the engine: `read` fills the cache with a prompt, `decode` draws tokens.

Both work on the cache of all slots, which is donated: the new one takes the old one's place in memory. What
differs from row to row and from call to call is data, so that each function is compiled once for a shape.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from generation.cache import Cache, forward_with_cache, shard_cache, unstack_blocks
from generation.sampling import sample
from layers.products import Linear
from model import GPT, Block

# Tokens per call of the compiled loop, at most. With nanoGPT's CPU Shakespeare model (4 layers, 4 heads,
# D 128, T 64, V 65) on 2 CPU cores, one sample: 0.33 ms per token one by one, 0.15 in chunks of 8, 0.11
# of 16, 0.09 of 32, 0.11 of 64.
CHUNK = 32
LIKELIEST = 20  # tokens whose probabilities are returned, at most: as many as OpenAI's API allows


class Decoder(eqx.Module):
    """The model as it decodes: its blocks one by one, and the size of its tokenizer's vocabulary.

    The weights of products are in the dtype that these take, so that no token has to cast them. Tokens from
    `vocab_size` on are never drawn: a model's vocabulary may be padded beyond the tokenizer's.
    """

    model: GPT
    blocks: list[Block]
    vocab_size: int = eqx.field(static=True)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Compute logits from features, float32, of the tokenizer's tokens alone."""
        return self.model.logits(x)[..., : self.vocab_size]


class Rows(NamedTuple):
    """The state of W rows, and their settings; made anew for each call, on the host."""

    token: Int[np.ndarray, " W"]  # the last token, which is not in the cache yet
    length: Int[np.ndarray, " W"]  # tokens in the cache
    left: Int[np.ndarray, " W"]  # tokens to draw now; 0: the row waits
    made: Int[np.ndarray, " W"]  # tokens drawn before
    key: Int[np.ndarray, "W 2"]  # the data of its random key
    temperature: Float[np.ndarray, " W"]
    top_k: Int[np.ndarray, " W"]
    top_p: Float[np.ndarray, " W"]
    wants_logprobs: Int[np.ndarray, " W"]  # 1: its request asks for log-probabilities

    @classmethod
    def empty(cls, slots: int) -> "Rows":
        """Return the rows of slots that are free."""
        token, length, left, made, top_k, wants_logprobs = np.zeros((6, slots), np.int32)
        temperature, top_p = np.zeros((2, slots), np.float32)
        one = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        key = np.zeros((slots, *one.shape), one.dtype)
        return cls(token, length, left, made, key, temperature, top_k + 1, top_p + 1, wants_logprobs)


class Likelihood(NamedTuple):
    """Log-probabilities of tokens, and of the likeliest in their places: before temperature, top_k, top_p."""

    chosen: Float[Array | np.ndarray, "W T"]
    likeliest: Float[Array | np.ndarray, "W T 20"]  # fewer, if the vocabulary has fewer
    tokens: Int[Array | np.ndarray, "W T 20"]  # the likeliest

    @classmethod
    def zeros(cls, W: int, T: int, vocab_size: int) -> "Likelihood":
        """Stand in for the likelihoods of tokens that no row asks for."""
        shape = (W, T, min(LIKELIEST, vocab_size))
        return cls(jnp.zeros((W, T)), jnp.zeros(shape), jnp.zeros(shape, jnp.int32))

    @classmethod
    def of(cls, tokens: Int[Array, "W T"], logits: Float[Array, "W T V"]) -> "Likelihood":
        """Compute how likely tokens are, and the likeliest, by the logits in their places."""
        logprobs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logprobs, tokens[..., None], axis=-1)[..., 0]
        return cls(chosen, *lax.top_k(logprobs, min(LIKELIEST, logits.shape[-1])))


@partial(jax.jit, static_argnames=("slots", "vocab_size"))
def start(model: GPT, slots: int, vocab_size: int) -> tuple[Decoder, Cache]:
    """Return the model as it decodes, and an empty cache."""
    cache = Cache.empty(model.config, slots)
    model = cast_products(model)
    return Decoder(model, unstack_blocks(model), vocab_size), shard_cache(cache)


def cast_products(model: GPT) -> GPT:
    """Return the model with the weights of its products in their dtype. It computes the same, to the bit."""

    dtype = model.config.compute.dtype

    def cast(x):
        return eqx.tree_at(lambda x: x.weight, x, x.weight.astype(dtype)) if isinstance(x, Linear) else x

    blocks = jax.tree.map(cast, model.blocks, is_leaf=lambda x: isinstance(x, Linear))
    head = model.head.astype(dtype)  # tied embeddings, too: tokens are looked up in float32
    return eqx.tree_at(lambda m: (m.blocks, m.lm_head), model, (blocks, head), is_leaf=lambda x: x is None)


@partial(jax.jit, donate_argnames="cache", static_argnames="bucket")
def read(
    decoder: Decoder,
    cache: Cache,
    slots: Int[Array, " R"],
    tokens: Int[Array, "R T"],
    length: Int[Array, " R"],
    following: Int[Array, "R T"] | None,
    bucket: int,
) -> tuple[Likelihood | None, Cache]:
    """Read tokens into the cache of R slots, behind the `length` that each has.

    Only the first `bucket` tokens of the cache are read and written. Padding behind the tokens is read too:
    what it leaves in the cache is overwritten before anything reads it. A slot may be given several times,
    with the same tokens. Where `following` has the token after each of them, return how likely those are.
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

    Only the first `bucket` tokens of the cache are read and written, because attention over the empty rest
    takes time. `bucket` is more than the tokens that any row has afterwards, waiting rows included, or
    all of the cache. Of a row's tokens the first `left` count; the others mean nothing. How likely they are
    is computed if one of the rows asks for it, and is zeros if none does.
    """
    rows = jax.tree.map(jnp.asarray, rows)
    W, V, row_keys = len(rows.token), decoder.vocab_size, jax.random.wrap_key_data(rows.key)

    def draw_next(i, state):
        drawn, token, part = state
        length = rows.length + jnp.minimum(i, rows.left)
        x, part = forward_with_cache(decoder.model, decoder.blocks, token[:, None], part, length)
        logits = decoder.logits(x)  # (W, 1, V)
        keys = jax.vmap(jax.random.fold_in)(row_keys, rows.made + i)
        settings = dict(temperature=rows.temperature, top_k=rows.top_k, top_p=rows.top_p)
        token = sample(logits[:, 0], keys, **settings)
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
