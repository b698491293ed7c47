"""Views of a trained model at work.

`tokens` is one text, int32 (T,), of at most block_size tokens; results are NumPy float32. The model's own
blocks run one at a time.
"""

from dataclasses import asdict
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from model import GPT, Block, GPTConfig, causal_mask, document_positions, rotation
from model import attention as values_read


class Lens(NamedTuple):
    """The logit lens (nostalgebraist, 2020). Layer 0 is the embedding, layer l the stream after block l."""

    tokens: Int[np.ndarray, "layers T k"]  # the likeliest next tokens in order; L + 1 layers
    probabilities: Float[np.ndarray, "layers T k"]
    stream_norms: Float[np.ndarray, "layers T"]  # Euclidean norms of the residual stream
    attn_norms: Float[np.ndarray, "L T"]  # and of what each block's attention and MLP add to it
    mlp_norms: Float[np.ndarray, "L T"]


class Heads(NamedTuple):
    """Holds queries, keys, values and weights of every head, whose output is weights @ values."""

    queries: Float[np.ndarray, "L H T C"]  # these and the keys after rotation
    keys: Float[np.ndarray, "L K T C"]
    values: Float[np.ndarray, "L K T C"]
    weights: Float[np.ndarray, "L H T T"]  # a row is the token that reads, and sums to 1


def shape(config: GPTConfig, dtype: str) -> dict[str, Any]:
    """Return a model's shape as the page takes it."""
    derived = {name: getattr(config, name) for name in ("kv_heads", "head_size", "hidden")}
    return asdict(config) | derived | {"dtype": dtype}


def limits(config: GPTConfig, max_tokens: int = 0) -> dict[str, int]:
    """Return how many tokens of a text the page's views take, and how many new ones it may ask for."""
    attention = int((2**22 / (config.n_layer * config.n_head)) ** 0.5)  # L H T T weights, 2**22 at most
    return {
        "tokens": 4096,
        "attention": max(1, min(config.block_size, attention)),
        "lens": min(config.block_size, 128),
        "max_tokens": max_tokens,
    }


def attention(model: GPT, tokens: Int[np.ndarray, " T"]) -> Float[np.ndarray, "L H T T"]:
    """Return how much each token reads of each before it."""
    return heads(model, tokens).weights


def heads(model: GPT, tokens: Int[np.ndarray, " T"]) -> Heads:
    """Return the same as `attention`, and the vectors that it is computed from."""
    T = len(tokens)
    found = [np.asarray(x, np.float32)[:, :, :T] for x in _heads(model, padded(model, tokens))]
    return Heads(*found[:3], found[3][..., :T])


def lens(model: GPT, tokens: Int[np.ndarray, " T"], k: int) -> Lens:
    """Return what the head would predict after each layer: the k likeliest tokens."""
    T = len(tokens)
    return Lens(*(np.asarray(x)[:, :T] for x in _lens(model, padded(model, tokens), k)))


def nats(model: GPT, tokens: Int[np.ndarray, " T"]) -> Float[np.ndarray, " T-1"]:
    """Return -log p of each token after the first: how much it surprises the model."""
    return np.asarray(_nats(model, padded(model, tokens)))[: len(tokens) - 1]


def padded(model: GPT, tokens: Int[np.ndarray, " T"]) -> Int[Array, "1 P"]:
    """Pad the tokens, which do not see it, to a power of two, so that few lengths are compiled."""
    T = len(tokens)
    P = min(1 << (T - 1).bit_length(), model.config.block_size)
    return jnp.asarray(np.pad(tokens, (0, P - T))[None], jnp.int32)


@eqx.filter_jit
def _heads(model: GPT, tokens: Int[Array, "1 T"]) -> tuple[Array, ...]:
    config, T = model.config, tokens.shape[1]
    positions, starts = document_positions(tokens, config.document_start)
    rotate = rotation(config, positions)
    mask = causal_mask(np.arange(T)[None], T, config.window, starts)
    each = jnp.broadcast_to(jnp.eye(T), (1, config.kv_heads, T, T))  # values that tell the tokens apart

    def layer(x, block: Block):
        seen = []

        def watched(q, k, v, key=None):
            q, k = rotate(q), rotate(k)
            # (1, heads, T, C); the last is (1, H, T, T)
            seen.extend((q, k, v, values_read(q, k, each, mask)))
            return values_read(q, k, v, mask)

        return block(x, watched), tuple(found[0] for found in seen)

    return lax.scan(layer, model.embed(tokens, positions), model.blocks)[1]


@eqx.filter_jit
def _lens(model: GPT, tokens: Int[Array, "1 T"], k: int) -> tuple[Array, ...]:
    positions, attend = model.causal_attention(tokens)

    def layer(x, block: Block):
        read = block.attn(block.ln_1(x), attend)
        added = block.mlp(block.ln_2(x + read))
        return x + read + added, (x, size(read), size(added))

    last, (before, attn_norms, mlp_norms) = lax.scan(layer, model.embed(tokens, positions), model.blocks)
    streams = jnp.concatenate([before, last[None]])[:, 0]  # (L + 1, T, D)
    # In bfloat16 this loop rounds otherwise than the model's own pass, which the last layer has to show.
    features = jnp.concatenate([model.ln_f(before), model.features(tokens)[None]])[:, 0]

    def predict(x):
        probabilities = jax.nn.softmax(model.logits(x[None])[0])  # (T, V)
        return lax.top_k(probabilities, k)

    probabilities, likeliest = lax.map(predict, features)  # one layer at a time: V is large
    return likeliest, probabilities, size(streams), attn_norms[:, 0], mlp_norms[:, 0]


@eqx.filter_jit
def _nats(model: GPT, tokens: Int[Array, "1 T"]) -> Float[Array, " T-1"]:
    logits = model(tokens)[0, :-1]
    chosen = jnp.take_along_axis(logits, tokens[0, 1:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


def size(x: Float[Array, "*any D"]) -> Float[Array, "*any"]:
    return jnp.linalg.norm(x.astype(jnp.float32), axis=-1)
