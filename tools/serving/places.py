"""Compute what could have stood at each place of a text, before and after temperature, top_k and top_p."""

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
from tools.inside.views import padded
from tools.serving.requests import Drawing

LIKELIEST = 10  # tokens of a place
AT_ONCE = 32  # places whose logits are held together


class Places(NamedTuple):
    """The likeliest tokens at each of P places, and the probabilities of the token that stands there."""

    likeliest: Int[Array | np.ndarray, "P n"]  # n is LIKELIEST, or less in a smaller vocabulary
    likeliest_before: Float[Array | np.ndarray, "P n"]
    likeliest_after: Float[Array | np.ndarray, "P n"]
    before: Float[Array | np.ndarray, " P"]
    after: Float[Array | np.ndarray, " P"]


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


def places(model: GPT, ids: Int[np.ndarray, " T"], prompt: int, drawing: Drawing, vocab_size: int) -> Places:
    """Compute the last places, up to the one behind the text, where token 0 stands for the one to come."""
    top_k = min(drawing.top_k or vocab_size, vocab_size)
    settings = np.float32(drawing.temperature), np.int32(top_k), np.float32(drawing.top_p or 1)
    following, found = np.append(ids[1:], np.int32(0)), []
    for start, first, last in windows(len(ids), prompt, model.config.block_size):
        rows = padded(model, ids[start:last]), padded(model, following[start:last])[0]
        window = jax.device_get(_places(model, *rows, settings, vocab_size))
        found.append([x[first - 1 - start : last - start] for x in window])
    return Places(*map(np.concatenate, zip(*found, strict=True)))


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
