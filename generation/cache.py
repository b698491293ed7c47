"""The key/value cache: keys and values of the tokens so far, so that a new token costs one token's work."""

from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Shaped

from layers.mask import causal_mask
from layers.mix import mix
from layers.products import result_dtype
from model import GPT, Block, GPTConfig, attention


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
        dtype = result_dtype(config.dtype)
        keys, values = ([jnp.zeros(shape, dtype) for _ in range(config.n_layer)] for _ in range(2))
        if config.eot is None:
            return cls(keys, values)
        return cls(keys, values, jnp.zeros((batch_size, 1, config.block_size, 1), jnp.int32))


def shard_cache(cache: Cache) -> Cache:
    """Split the heads over the mesh axis `tensor`, inside a compiled function. Without a mesh, do nothing.

    Every function that makes a cache returns it through this, so that the next takes it as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return cache

    def split_heads(x):
        heads = "tensor" if x.shape[1] % mesh.shape["tensor"] == 0 else None
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
    within = replace(config, dtype=result_dtype(config.dtype))  # attention reads the cache as it is
    places = length[:, None] + jnp.arange(tokens.shape[1])  # (B, T)
    S, documents, begun = cache.keys[0].shape[2], cache.documents, 0
    if documents is not None:  # in an empty row 0, whatever an earlier sequence has left there
        last = jnp.arange(S) == length[:, None] - 1
        begun = jnp.where(last, documents[:, 0, :, 0], 0).max(axis=1, keepdims=True)
    context = model.context(tokens, places, begun)
    if documents is not None and context.documents is not None:
        documents = write(documents, context.documents[:, None, :, None], length)
    mask = causal_mask(places, S, config.window, context.documents)
    x = model.embed(tokens, context)
    keys, values = [], []
    for block, old_keys, old_values in zip(blocks, cache.keys, cache.values, strict=True):
        x = mix(x, context.first, block.stream_mix)
        q, k, v, opening = block.attn.heads(block.ln_1(x), context)
        keys.append(write(old_keys, k, length))
        values.append(write(old_values, v, length))
        x = x + block.attn.output(attention(q, keys[-1], values[-1], mask, within), opening)
        x = x + block.mlp(block.ln_2(x))
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
