"""The key/value cache: keys and values of the tokens so far, so that a new token costs one token's work."""

from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Shaped

from layers.attention import (
    attention_weights,
    causal_mask,
    document_starts,
    rotation,
    weighted_values,
)
from layers.compute import here
from model import GPT, Block, GPTConfig


class Cache(NamedTuple):
    """Room for S = block_size tokens of each of B sequences. How many each has is the caller's to know.

    Keys and values are in the dtype that products give, which on a CPU is float32: XLA has no bfloat16 there
    to write one token in place, and would convert the whole cache to float32 and back for each.
    """

    keys: list[Float[Array, "B K S C"]]  # one for each layer
    values: list[Float[Array, "B K S C"]]
    documents: Int[Array, "B 1 S 1"] | None = None  # where each token's document begins; None without eot

    @classmethod
    def empty(cls, config: GPTConfig, batch_size: int) -> "Cache":
        """Make room for B = batch_size sequences, which have no tokens yet."""
        shape = (batch_size, config.kv_heads, config.block_size, config.head_size)
        dtype = config.compute.result
        keys, values = ([jnp.zeros(shape, dtype) for _ in range(config.n_layer)] for _ in range(2))
        if config.eot is None:
            return cls(keys, values)
        return cls(keys, values, jnp.zeros((batch_size, 1, config.block_size, 1), jnp.int32))


def shard_cache(cache: Cache) -> Cache:
    """Split the heads over the mesh axis `tensor`, inside a compiled function. Without a mesh, do nothing.

    Every function that makes a cache returns it through this, so that the next takes it as it is.
    """
    place = here()
    if not place.on_mesh:
        return cache

    def split_heads(x):
        heads = "tensor" if x.shape[1] % place.sizes["tensor"] == 0 else None
        return lax.with_sharding_constraint(x, P(None, heads))

    return jax.tree.map(split_heads, cache)


def unstack_blocks(model: GPT) -> list[Block]:
    """Copy the blocks one by one out of the stacked one."""
    return [jax.tree.map(itemgetter(i), model.blocks) for i in range(model.config.n_layer)]


def forward_with_cache(
    model: GPT, blocks: list[Block], tokens: Int[Array, "B T"], cache: Cache, length: Int[Array, " B"]
) -> tuple[Float[Array, "B T D"], Cache]:
    """Compute features of tokens that follow the first `length` of each row, and the cache with theirs added.

    The cache may have room for fewer than block_size tokens. A row with room for fewer than T overwrites its
    last tokens, and is not to be read again. `blocks` are `unstack_blocks(model)`, made once: making them for
    each token would copy all the weights each time, and take as long as the token itself.
    """
    config = model.config
    compute = replace(config.compute, dtype=config.compute.result)  # attention reads the cache as it is
    places = length[:, None] + jnp.arange(tokens.shape[1])  # (B, T)
    S, positions = cache.keys[0].shape[2], places
    documents = starts = None
    if cache.documents is not None and config.eot is not None:
        last = jnp.arange(S) == length[:, None] - 1  # in no place of an empty row, whatever was left there
        begun = jnp.where(last, cache.documents[:, 0, :, 0], 0).max(axis=1, keepdims=True)
        starts = document_starts(tokens, config.eot, places, begun)
        positions = places - starts
        documents = write(cache.documents, starts[:, None, :, None], length)
    mask = causal_mask(places, S, config.window, starts)
    rotate = rotation(config, positions)
    keys, values = [], []

    def attend(q, k, v, key=None):
        """Add a layer's keys and values to the cache, and read it. The layers call this in their order."""
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
    """Return `old` with `new` behind the length of each row.

    Row by row: with one scatter for all, a step of 16 rows takes 1.3 times as long on a CPU.
    """
    new = new.astype(old.dtype)

    def write_row(row, cache):
        part = lax.dynamic_slice_in_dim(new, row, 1)  # (1, K, T, C)
        return lax.dynamic_update_slice(cache, part, (row, 0, length[row], 0))

    return lax.fori_loop(0, len(old), write_row, old)
