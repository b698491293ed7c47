"""From a prompt to new tokens: the prompt at once, then a token at a time with the key/value cache.

    for tokens in generate(model, prompt, key=key, max_new_tokens=500, temperature=0.8):     # (B, n) each
        ...

The model reads block_size tokens at most, at positions 0 to block_size - 1. So there is a window rule:

    A new token reads all tokens before it while they are at most block_size. When they are more, the last
    block_size / 2 of them become the context, from position 0 on, which then grows to block_size again.
    Of a prompt longer than block_size, the last block_size tokens are read.

Past block_size a token thus reads between block_size / 2 and block_size tokens, and one token in
block_size / 2 costs a prefill. Moving the window by one token each time would cost every token one, because
all positions change.

Two functions are compiled, for all lengths of prompt and output. `_prefill` reads a context and draws one
token; it is compiled at most twice, for contexts padded to block_size / 2 and to block_size. `_decode` draws
up to CHUNK more; it is compiled once.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, PRNGKeyArray

from generation.sampling import sample
from model import GPT, Cache

# Tokens per call of the compiled loop. With nanoGPT's CPU Shakespeare model (4 layers, 4 heads, D 128, T 64,
# V 65) on 2 CPU cores, one sample: 0.33 ms per token one by one, 0.15 in chunks of 8, 0.11 of 16, 0.09 of 32,
# 0.11 of 64.
CHUNK = 32


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
) -> Iterator[np.ndarray]:
    """Yields the tokens that follow each row of the prompt as they are made: (B, n) int32, n varies.

    The prompt has at least one token. Token i of row r is drawn with a key made of `key`, r and i: it depends
    neither on the number of rows nor on `max_new_tokens`. See `sample` for temperature, top_k and top_p.
    Tokens from `vocab_size` on are never drawn: a model's vocabulary may be padded beyond the tokenizer's.
    """
    B, S = prompt.shape[0], model.config.block_size
    settings = dict(temperature=temperature, top_k=top_k, top_p=top_p, vocab_size=vocab_size)
    layers, cache, keys = _start(model, key, B)
    context, made = np.asarray(prompt, np.int32)[:, -S:], 0
    while made < max_new_tokens:
        length = context.shape[1]
        if made and length <= S:  # all of the context but its last token is in the cache
            n = min(CHUNK, S + 1 - length, max_new_tokens - made)
            new, cache = _decode(model, layers, cache, context[:, -1:], n, keys, made, **settings)
        else:
            if length > S:
                context = context[:, -max(1, S // 2) :]
            n = 1
            new, cache = _prefill(model, layers, cache, *_padded(context, S), keys, made, **settings)
        new = np.asarray(new)[:, :n]
        yield new
        context, made = np.concatenate([context, new], axis=1), made + n


def _padded(context: Int[np.ndarray, "B P"], S: int) -> tuple[Int[np.ndarray, "B _"], int]:
    """The context with zeros behind it, to one of two lengths, and its length without them."""
    P = context.shape[1]
    padded = S // 2 if P <= S // 2 else S
    return np.pad(context, ((0, 0), (0, padded - P))), P


@partial(jax.jit, static_argnames="B")
def _start(model, key, B):
    """The blocks one by one, an empty cache, and a key for each row."""
    return (
        model.layers(),
        Cache.empty(model.config, B),
        jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(B)),
    )


_compiled = partial(
    jax.jit,
    static_argnames=("temperature", "top_k", "top_p", "vocab_size"),
    donate_argnames="cache",  # the new cache takes the old one's place in memory
)


@_compiled
def _prefill(model, layers, cache, context, length, keys, made, **settings):
    """Reads the first `length` tokens of `context` into the cache, from its start. Draws (B, 1)."""
    # The padding behind them is read too. What it leaves in the cache is overwritten before it is readable.
    x, cache = model.extend(context, cache._replace(length=jnp.zeros((), jnp.int32)), layers)
    x = lax.dynamic_slice_in_dim(x, length - 1, 1, axis=1)  # (B, 1, D)
    return _draw(model, x, keys, made, **settings), cache._replace(length=jnp.asarray(length, jnp.int32))


@_compiled
def _decode(model, layers, cache, token, n, keys, made, **settings):
    """Reads the last token (B, 1) and draws the next, n times: the first n of (B, CHUNK)."""

    def one(i, state):
        tokens, token, cache = state
        x, cache = model.extend(token, cache, layers)
        token = _draw(model, x, keys, made + i, **settings)
        return lax.dynamic_update_slice_in_dim(tokens, token, i, axis=1), token, cache

    tokens = jnp.zeros((token.shape[0], CHUNK), jnp.int32)
    tokens, _, cache = lax.fori_loop(0, n, one, (tokens, token, cache))
    return tokens, cache


def _draw(model, x, keys, i, *, vocab_size, **settings) -> Int[Array, "B 1"]:
    """The i-th new token of each row, from the features (B, 1, D) of the one before."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
    return sample(model.logits(x)[:, 0, :vocab_size], keys, **settings)[:, None]
