"""Views of a trained model at work: they compute what it goes through on the way to its prediction.

    attention(model, tokens)      (L, H, T, T)      how much each token reads of each before it
    lens(model, tokens, k)        Lens              what the head would predict after each layer
    nats(model, tokens)           (T - 1,)          how surprising each token was to the model

`tokens` is one text, int32 (T,), of at most block_size tokens; results are NumPy float32. The layers are
the model's own, applied one at a time as a pipeline does it, so that one can look at the residual stream in
between.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from layers.context import Context
from layers.mask import causal_mask
from layers.mix import mix
from model import GPT, Block
from model import attention as attend


class Lens(NamedTuple):
    """The logit lens (nostalgebraist, 2020). Layer 0 is the embedding, layer l the stream after block l."""

    tokens: Int[np.ndarray, "layers T k"]  # the likeliest next tokens, the first most so; L + 1 layers
    probabilities: Float[np.ndarray, "layers T k"]
    stream_norms: Float[np.ndarray, "layers T"]  # Euclidean norms of the residual stream
    attn_norms: Float[np.ndarray, "L T"]  # and of what each block's attention and MLP add to it
    mlp_norms: Float[np.ndarray, "L T"]


def attention(model: GPT, tokens: Int[np.ndarray, " T"]) -> Float[np.ndarray, "L H T T"]:
    """Return the attention weights of every head; a row is the token that reads, and sums to 1."""
    T = len(tokens)
    return np.asarray(_attention(model, padded(model, tokens)), np.float32)[:, :, :T, :T]


def lens(model: GPT, tokens: Int[np.ndarray, " T"], k: int) -> Lens:
    """Return what the head predicts from the residual stream after each layer, and the sizes of its parts."""
    T = len(tokens)
    return Lens(*(np.asarray(x)[:, :T] for x in _lens(model, padded(model, tokens), k)))


def nats(model: GPT, tokens: Int[np.ndarray, " T"]) -> Float[np.ndarray, " T-1"]:
    """Return -log of the probability that the model gave to each token from those before it."""
    return np.asarray(_nats(model, padded(model, tokens)))[: len(tokens) - 1]


def padded(model: GPT, tokens: Int[np.ndarray, " T"]) -> Int[Array, "1 P"]:
    """Pad the tokens, which do not see it, to a power of two, so that few lengths have to be compiled.

    Raises ValueError for no token, or more than block_size.
    """
    T, block_size = len(tokens), model.config.block_size
    if not 0 < T <= block_size:
        raise ValueError(f"{T} tokens: expected 1 to {block_size}, the model's block_size")
    row = np.zeros((1, min(1 << (T - 1).bit_length(), block_size)), np.int32)
    row[0, :T] = tokens
    return jnp.asarray(row)


def walk(
    model: GPT, tokens: Int[Array, "1 T"], look: Callable[[Block, Float[Array, "1 T D"], Context], PyTree]
) -> tuple[PyTree, Float[Array, "1 T D"]]:
    """Apply the blocks one by one. Return what `look` finds at each, stacked, and the stream after the last.

    It is called with a block, the residual stream before it, and the context.
    """
    context = model.context(tokens)

    def layer(x, block):
        seen = look(block, x, context)
        return model.apply_blocks(jax.tree.map(lambda weight: weight[None], block), x, context), seen

    x, seen = lax.scan(layer, model.embed(tokens, context), model.blocks)
    return seen, x


@eqx.filter_jit
def _attention(model: GPT, tokens: Int[Array, "1 T"]) -> Float[Array, "L H T T"]:
    def look(block: Block, x, context: Context):
        config, T = block.attn.config, tokens.shape[1]
        q, k, *_ = block.attn.heads(block.ln_1(mix(x, context.first, block.stream_mix)), context)
        mask = causal_mask(jnp.arange(T)[None], T, config.window, context.documents)
        # With the columns of the identity as values, C at a time, what a head reads is its weights.
        C = config.head_size
        n = -(-T // C)
        columns = jnp.eye(T, n * C).reshape(T, n, C).swapaxes(0, 1)  # (n, T, C)
        values = jnp.broadcast_to(columns[:, None, None], (n, 1, config.kv_heads, T, C))
        read = jax.vmap(lambda v: attend(q, k, v, mask, config))(values)  # (n, 1, H, T, C)
        return jnp.moveaxis(read[:, 0], 0, 2).reshape(config.n_head, T, n * C)[:, :, :T]

    return walk(model, tokens, look)[0]


@eqx.filter_jit
def _lens(model: GPT, tokens: Int[Array, "1 T"], k: int) -> tuple[Array, ...]:
    def look(block: Block, x, context: Context):
        stream = mix(x, context.first, block.stream_mix)
        read = block.attn(block.ln_1(stream), context)
        return x, size(read), size(block.mlp(block.ln_2(stream + read)))

    (before, attn_norms, mlp_norms), last = walk(model, tokens, look)
    streams = jnp.concatenate([before, last[None]])[:, 0]  # (L + 1, T, D)

    def predict(x):
        probabilities = jax.nn.softmax(model.logits(model.ln_f(x[None]))[0])  # (T, V)
        return lax.top_k(probabilities, k)

    probabilities, likeliest = lax.map(predict, streams)  # one layer at a time: V is large
    return likeliest, probabilities, size(streams), attn_norms[:, 0], mlp_norms[:, 0]


@eqx.filter_jit
def _nats(model: GPT, tokens: Int[Array, "1 T"]) -> Float[Array, " T-1"]:
    logits = model(tokens)[0, :-1]
    chosen = jnp.take_along_axis(logits, tokens[0, 1:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


def size(x: Float[Array, "*any D"]) -> Float[Array, "*any"]:
    return jnp.linalg.norm(x.astype(jnp.float32), axis=-1)
