"""The loop over the blocks, and what makes it fast. It computes what `for block in blocks` would."""

from collections.abc import Callable
from operator import itemgetter

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from layers.compute import Compute, constrain, current_mesh

# Rematerialisation (arXiv:1604.06174) keeps a block's input and the arrays of these names for the backward
# pass (`checkpoint_name` in layers/products.py).
KEPT = {"block": (), "dots": ("linear",)}


def apply_blocks(
    blocks,
    x: Float[Array, "B T D"],
    attend: Callable,
    keys: Shaped[PRNGKeyArray, " n"] | None,
    compute: Compute,
) -> Float[Array, "B T D"]:
    """Apply n stacked blocks in turn: `x = block(x, attend, key)`. `keys` turn dropout on."""

    def layer(x, block_and_key):
        block, key = block_and_key
        return fold_norms(block)(shard_residual(x), attend, key), None

    n = len(blocks.ln_1.weight)
    unroll = min(compute.unroll or n, n)
    body = layer
    if compute.remat != "none":
        # Where the loop is unrolled, XLA would merge the recomputed operations with the first ones.
        policy = jax.checkpoint_policies.save_only_these_names(*KEPT[compute.remat])
        body = jax.checkpoint(layer, policy=policy, prevent_cse=unroll == n)
    if unroll == n and current_mesh().shape["stage"] > 1:  # where scan unrolls, XLA for TPUs crashes
        for i in range(n):
            x, _ = body(x, jax.tree.map(itemgetter(i), (blocks, keys)))
        return x
    return lax.scan(body, x, (blocks, keys), unroll=unroll)[0]


# Without this in each layer, XLA replicates the batch, and moves activations instead of `fsdp`'s weights.
def shard_residual(x: Float[Array, "*leading B T D"]) -> Float[Array, "*leading B T D"]:
    """Constrain x's batch axis to be split over `data` and `fsdp`."""
    return constrain(x, *[None] * (x.ndim - 3), ("data", "fsdp"))


# The gradient of a norm's weight is a sum over tokens, for which XLA computes the norm again: 5% of GPT-2's
# step on an H100, as planned. A bias needs such a sum anyway. With `tensor`, folding would add communication.
def fold_norms(block):
    """Move the norms' weights g into the layers that read the norms: (y * g) @ w = y @ (g[:, None] * w)."""
    if block.ln_1.bias is not None or current_mesh().shape["tensor"] > 1:
        return block
    attn = [layer.scale_inputs(block.ln_1.weight) for layer in block.attn.readers()]
    mlp = [layer.scale_inputs(block.ln_2.weight) for layer in block.mlp.readers()]
    block = eqx.tree_at(lambda b: [*b.attn.readers(), *b.mlp.readers()], block, [*attn, *mlp])
    return eqx.tree_at(lambda b: [b.ln_1.weight, b.ln_2.weight], block, replace_fn=jnp.ones_like)
