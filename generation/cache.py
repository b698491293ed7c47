"""The key/value cache: the keys and values of earlier tokens, so that a new one costs one token's work."""

from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from layers.attention import attention_weights, causal_mask, document_starts, rotation, weighted_values
from layers.compute import constrain, current_mesh
from model import GPT, Block, GPTConfig


class Cache(NamedTuple):
    """The keys and values of up to S tokens of B sequences, whose lengths the caller keeps.

    Their dtype is that of products, float32 on a CPU: XLA would convert all of a bfloat16 cache to write it.
    """

    keys: list[Float[Array, "B K S C"]]  # one for each layer
    values: list[Float[Array, "B K S C"]]
    documents: Int[Array, "B 1 S 1"] | None = None  # where each token's document begins; None without eot

    @classmethod
    def empty(cls, config: GPTConfig, B: int, S: int) -> "Cache":
        K, C = config.kv_heads, config.head_size
        keys, values = (
            [jnp.zeros((B, K, S, C), config.compute.result) for _ in range(config.n_layer)] for _ in range(2)
        )
        return cls(keys, values, None if config.eot is None else jnp.zeros((B, 1, S, 1), jnp.int32))


def shard_cache(cache: Cache) -> Cache:
    """Constrain the heads to be split over `tensor`, as all functions do that return a cache."""
    n = current_mesh().shape["tensor"]
    return jax.tree.map(lambda x: constrain(x, None, "tensor" if x.shape[1] % n == 0 else None), cache)


def unstack_blocks(model: GPT) -> list[Block]:
    return [jax.tree.map(itemgetter(i), model.blocks) for i in range(model.config.n_layer)]


def forward_with_cache(
    model: GPT, blocks: list[Block], tokens: Int[Array, "B T"], cache: Cache, length: Int[Array, " B"]
) -> tuple[Float[Array, "B T D"], Cache]:
    """Compute features of tokens that follow the first `length` of each row, and add them to the cache.

    `blocks` are `unstack_blocks(model)`, made once, because that takes as long as a token.
    """
    config = model.config
    compute = replace(config.compute, dtype=config.compute.result)  # the cache's
    indices = length[:, None] + jnp.arange(tokens.shape[1])  # (B, T)
    S, positions = cache.keys[0].shape[2], indices
    documents = starts = None
    if cache.documents is not None and config.eot is not None:
        last = jnp.arange(S) == length[:, None] - 1  # nowhere in an empty row
        begun = jnp.where(last, cache.documents[:, 0, :, 0], 0).max(axis=1, keepdims=True)
        starts = document_starts(tokens, config.eot, indices, begun)
        positions = indices - starts
        documents = write(cache.documents, starts[:, None, :, None], length)
    mask = causal_mask(indices, S, config.window, starts)
    rotate = rotation(config, positions)
    keys, values = [], []

    @jax.named_scope("attention")
    def attend(q, k, v, key=None):
        """Add a layer's keys and values to the cache, and read it. The layers call this in order."""
        layer = len(keys)
        keys.append(write(cache.keys[layer], rotate(k.swapaxes(1, 2)), length))
        values.append(write(cache.values[layer], v.swapaxes(1, 2), length))
        weights = attention_weights(rotate(q.swapaxes(1, 2)), keys[layer], mask, compute.dtype)
        return weighted_values(weights, values[layer], compute).swapaxes(1, 2)

    x = model.embed(tokens, positions)
    for block in blocks:
        x = block(x, attend)
    return model.ln_f(x), Cache(keys, values, documents)


def write(
    old: Shaped[Array, "B K S C"], new: Shaped[Array, "B K T C"], length: Int[Array, " B"]
) -> Shaped[Array, "B K S C"]:
    """Return `old` with `new` after the `length` of each row. One scatter would be slower on a CPU."""
    new = new.astype(old.dtype)

    def write_row(row, cache):
        part = lax.dynamic_slice_in_dim(new, row, 1)  # (1, K, T, C)
        return lax.dynamic_update_slice(cache, part, (row, 0, length[row], 0))

    return lax.fori_loop(0, len(old), write_row, old)
