"""Compute what could have stood at each place of a text: the likeliest tokens, before and after the settings.

    for start, first, last in windows(len(tokens), prompt, block_size):
        places(model, tokens[start:last], tokens[start + 1 : last + 1], drawing, vocab_size)

"After" the settings are the probabilities that tokens are drawn from: see `generation.sampling.sample`.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from generation.sampling import drawn_from
from model import GPT
from tools.serving.requests import Drawing

LIKELIEST = 10  # tokens of a place
AT_ONCE = 32  # places whose logits are held together


class Places(NamedTuple):
    """The likeliest tokens after each token, and the probabilities of the one that follows it."""

    tokens: Int[Array | np.ndarray, "T n"]  # n is LIKELIEST, or less in a smaller vocabulary
    before: Float[Array | np.ndarray, "T n"]
    after: Float[Array | np.ndarray, "T n"]
    chosen_before: Float[Array | np.ndarray, " T"]
    chosen_after: Float[Array | np.ndarray, " T"]


def windows(total: int, prompt: int, block_size: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, first, last): the model fills the places `first` to `last` from the tokens since `start`.

    This is the window rule of `generation.engine`, after `prompt` given tokens, whose last block_size count.
    """
    start = max(0, prompt - block_size)
    first = start + 1
    while True:
        last = min(total, start + block_size)
        yield start, first, last
        if last == total:
            return
        first, start = last + 1, last + 1 - max(1, block_size // 2)


def places(
    model: GPT,
    tokens: Int[np.ndarray, " T"],
    following: Int[np.ndarray, " _"],
    drawing: Drawing,
    vocab_size: int,
) -> Places:
    """Compute the places after each of the tokens. `following` may lack the last of them.

    Then its `chosen` probabilities mean nothing.
    """
    T = min(1 << (len(tokens) - 1).bit_length(), model.config.block_size)  # few lengths to compile
    padded = np.zeros((2, T), np.int32)
    padded[0, : len(tokens)], padded[1, : len(following)] = tokens, following
    top_k = min(drawing.top_k or vocab_size, vocab_size)
    settings = np.float32(drawing.temperature), np.int32(top_k), np.float32(drawing.top_p or 1)
    found = jax.device_get(_places(model, padded[:1], padded[1], settings, vocab_size))
    return Places(*(x[: len(tokens)] for x in found))


@partial(jax.jit, static_argnames="vocab_size")
def _places(
    model: GPT,
    tokens: Int[Array, "1 T"],
    following: Int[Array, " T"],
    settings: tuple[Float[Array, ""], Int[Array, ""], Float[Array, ""]],
    vocab_size: int,
) -> Places:
    temperature, top_k, top_p = settings

    def place(x: Float[Array, " D"], chosen: Int[Array, ""]) -> Places:
        logits = model.logits(x[None, None])[0, :, :vocab_size]  # (1, V)
        kept = drawn_from(logits, temperature[None], top_k[None], top_p[None])
        greedy = jax.nn.one_hot(jnp.argmax(logits), vocab_size)
        after = jnp.where(temperature == 0, greedy, jax.nn.softmax(kept[0]))
        before = jax.nn.softmax(logits[0])
        likeliest, ids = lax.top_k(before, min(LIKELIEST, vocab_size))
        return Places(ids, likeliest, after[ids], before[chosen], after[chosen])

    x = model.features(tokens)[0]  # (T, D)
    return lax.map(lambda pair: place(*pair), (x, following), batch_size=AT_ONCE)
