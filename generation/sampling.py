"""From logits to the next token: penalties, temperature, which tokens are kept, and the draw.

Each row has settings of its own, as transformers and OpenAI's API define them. One that no row uses costs no
time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

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

    @property
    def penalties(self) -> tuple[Setting, Setting, Setting]:
        return self.repetition_penalty, self.presence_penalty, self.frequency_penalty


PLAIN, GREEDY = Settings(), Settings(temperature=0)


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
    repetition, presence, frequency = map(jnp.asarray, settings.penalties)

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
    temperature, top_k, top_p, min_p, *_ = map(jnp.asarray, settings)
    kept = scale(logits, jnp.where(temperature == 0, 1, temperature))
    top_k = jnp.where(top_k > 0, top_k, jnp.inf)
    kept = lax.cond((top_k < logits.shape[1]).any(), keep_top_k, lambda kept, _: kept, kept, top_k)
    kept = lax.cond((top_p < 1).any(), keep_top_p, lambda kept, _: kept, kept, top_p)
    return lax.cond((min_p > 0).any(), keep_min_p, lambda kept, _: kept, kept, min_p)


def scale(logits: Float[Array, "B V"], temperature: Setting) -> Float[Array, "B V"]:
    """Subtract the largest logit, so that none overflows, and divide by the temperature."""
    return (logits - logits.max(axis=-1, keepdims=True)) / temperature


def keep_top_k(logits: Float[Array, "B V"], k: Setting) -> Float[Array, "B V"]:
    """Set all but the k largest logits to -inf. Ties with the k-th are kept."""
    kept = likeliest(logits, jnp.ones_like(logits), k)
    return jnp.where(kept, logits, -jnp.inf)


def keep_top_p(logits: Float[Array, "B V"], p: Setting) -> Float[Array, "B V"]:
    """Keep the likeliest tokens that make up p (arXiv:1904.09751), and ties; others get -inf. 0 keeps one."""
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
