"""The key/value cache: keys and values of the tokens so far, so that a new token costs one token's work."""

from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from layers.mask import causal_mask
from model import GPT, Block, GPTConfig, attention, context_at


class Cache(NamedTuple):
    """Room for S = block_size tokens of each of B sequences, of which the first `length` are filled."""

    keys: list[Float[Array, "B K S C"]]  # one for each layer
    values: list[Float[Array, "B K S C"]]
    length: Int[Array, ""]

    @classmethod
    def empty(cls, config: GPTConfig, batch_size: int) -> "Cache":
        shape = (batch_size, config.kv_heads, config.block_size, config.head_size)
        keys, values = ([jnp.zeros(shape, config.dtype) for _ in range(config.n_layer)] for _ in range(2))
        return cls(keys, values, jnp.zeros((), jnp.int32))


def unstack_blocks(model: GPT) -> list[Block]:
    """Copy the blocks one by one out of the stacked one."""
    return [jax.tree.map(itemgetter(i), model.blocks) for i in range(model.config.n_layer)]


def forward_with_cache(
    model: GPT, blocks: list[Block], tokens: Int[Array, "B T"], cache: Cache
) -> tuple[Float[Array, "B T D"], Cache]:
    """Compute features of tokens that follow those in the cache, and the cache with theirs added.

    Requires cache.length + T <= S. `blocks` are `unstack_blocks(model)`, made once: making them for each
    token would copy all the weights each time, and take as long as the token itself. All tokens are read as
    one document, whatever `eot` is.
    """
    config, start = model.config, cache.length
    positions = start + jnp.arange(tokens.shape[1])[None]  # (1, T)
    mask = causal_mask(positions, config.block_size, config.window)
    context = context_at(positions, config)
    x = model.embed(tokens, context)
    keys, values = [], []
    for block, old_keys, old_values in zip(blocks, cache.keys, cache.values, strict=True):
        q, k, v = block.attn.heads(block.ln_1(x), context)
        keys.append(lax.dynamic_update_slice_in_dim(old_keys, k.astype(old_keys.dtype), start, axis=2))
        values.append(lax.dynamic_update_slice_in_dim(old_values, v.astype(old_values.dtype), start, axis=2))
        x = x + block.attn.output(attention(q, keys[-1], values[-1], mask, config))
        x = x + block.mlp(block.ln_2(x))
    return model.ln_f(x), Cache(keys, values, start + tokens.shape[1])
