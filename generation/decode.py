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

Two functions are compiled, for all lengths of prompt and output. `prefill` reads a context and draws one
token; it is compiled at most twice, for contexts padded to block_size / 2 and to block_size. `decode` draws
up to CHUNK more; it is compiled once.
"""

from collections.abc import Iterator
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from generation.cache import Cache, forward_with_cache, unstack_blocks
from generation.sampling import sample
from model import GPT, Block

# Tokens per call of the compiled loop. With nanoGPT's CPU Shakespeare model (4 layers, 4 heads, D 128, T 64,
# V 65) on 2 CPU cores, one sample: 0.33 ms per token one by one, 0.15 in chunks of 8, 0.11 of 16, 0.09 of 32,
# 0.11 of 64.
CHUNK = 32


class Decoder(eqx.Module):
    """The model and the settings that stay the same while tokens are drawn. Settings are compiled in."""

    model: GPT
    blocks: list[Block]
    row_keys: Shaped[PRNGKeyArray, " B"]
    temperature: float
    top_k: int | None
    top_p: float | None
    vocab_size: int | None

    def draw(self, x: Float[Array, "B 1 D"], i: Int[Array, ""]) -> Int[Array, "B 1"]:
        """Draw the i-th new token of each row from the features of the token before it."""
        keys = jax.vmap(jax.random.fold_in, (0, None))(self.row_keys, i)
        logits = self.model.logits(x)[:, 0, : self.vocab_size]
        drawn = sample(logits, keys, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        return drawn[:, None]


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
    """Yield the tokens that follow each row of the prompt as they are made: (B, n) int32, n varies.

    The prompt has at least one token. Token i of row r is drawn with a key made of `key`, r and i: it depends
    neither on the number of rows nor on `max_new_tokens`. See `sample` for temperature, top_k and top_p.
    Tokens from `vocab_size` on are never drawn: a model's vocabulary may be padded beyond the tokenizer's.
    """
    B, S = prompt.shape[0], model.config.block_size
    blocks, cache, row_keys = start(model, key, B)
    decoder = Decoder(model, blocks, row_keys, temperature, top_k, top_p, vocab_size)
    context, made = np.asarray(prompt, np.int32)[:, -S:], 0
    while made < max_new_tokens:
        length = context.shape[1]
        if made and length <= S:  # all of the context but its last token is in the cache
            n = min(CHUNK, S + 1 - length, max_new_tokens - made)
            new, cache = decode(decoder, cache, context[:, -1:], np.int32(n), np.int32(made))  # ty: ignore[invalid-argument-type]
        else:
            if length > S:
                context = context[:, -max(1, S // 2) :]
            n = 1
            padded, length = pad(context, S)
            new, cache = prefill(decoder, cache, padded, np.int32(length), np.int32(made))  # ty: ignore[invalid-argument-type]
        new = np.asarray(new)[:, :n]
        yield new
        context, made = np.concatenate([context, new], axis=1), made + n


def pad(context: Int[np.ndarray, "B P"], S: int) -> tuple[Int[np.ndarray, "B _"], int]:
    """Append zeros to the context, to one of two lengths; return it with its length without them."""
    P = context.shape[1]
    padded = S // 2 if P <= S // 2 else S
    return np.pad(context, ((0, 0), (0, padded - P))), P


@eqx.filter_jit
def start(model: GPT, key: PRNGKeyArray, B: int) -> tuple[list[Block], Cache, Shaped[PRNGKeyArray, " B"]]:
    """Return the blocks one by one, an empty cache, and a key for each row."""
    row_keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(B))
    return unstack_blocks(model), Cache.empty(model.config, B), row_keys


# All but the decoder is donated: the new cache takes the old one's place in memory.
@eqx.filter_jit(donate="all-except-first")
def prefill(
    decoder: Decoder, cache: Cache, context: Int[Array, "B P"], length: Int[Array, ""], made: Int[Array, ""]
) -> tuple[Int[Array, "B 1"], Cache]:
    """Read the first `length` tokens of `context` into the cache, from its start, and draw a token."""
    # The padding behind them is read too. What it leaves in the cache is overwritten before it is readable.
    cache = cache._replace(length=jnp.zeros((), jnp.int32))
    x, cache = forward_with_cache(decoder.model, decoder.blocks, context, cache)
    x = lax.dynamic_slice_in_dim(x, length - 1, 1, axis=1)  # (B, 1, D)
    return decoder.draw(x, made), cache._replace(length=length)


@eqx.filter_jit(donate="all-except-first")
def decode(
    decoder: Decoder, cache: Cache, token: Int[Array, "B 1"], n: Int[Array, ""], made: Int[Array, ""]
) -> tuple[Int[Array, "B CHUNK"], Cache]:
    """Read the last token and draw the next, n times. The first n columns returned are the new tokens."""

    def draw_next(i, state):
        tokens, token, cache = state
        x, cache = forward_with_cache(decoder.model, decoder.blocks, token, cache)
        token = decoder.draw(x, made + i)
        return lax.dynamic_update_slice_in_dim(tokens, token, i, axis=1), token, cache

    tokens = jnp.zeros((token.shape[0], CHUNK), jnp.int32)
    tokens, _, cache = lax.fori_loop(0, n, draw_next, (tokens, token, cache))
    return tokens, cache
