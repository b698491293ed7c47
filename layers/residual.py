"""The sharding of the residual stream and of logits, the arrays whose sharding is written down."""

import jax
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float


def row_axes() -> tuple[str, ...]:
    """Return the mesh axes that split a batch's rows; inside `jax.shard_map`, those that it leaves to XLA."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(axis for axis in ("data", "fsdp") if axis not in mesh.manual_axes)


def shard_residual(x: Float[Array, "*leading B T D"]) -> Float[Array, "*leading B T D"]:
    """Split x's batch axis over the mesh axes `data` and `fsdp`. Without a mesh, return x itself.

    With this in each layer, the compiler gathers a layer's weights where `fsdp` splits them. Without it, XLA
    would replicate the batch and move the activations, which are larger.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return lax.with_sharding_constraint(x, PartitionSpec(*[None] * (x.ndim - 3), row_axes()))


def shard_rows(logits: Float[Array, "B T V"]) -> Float[Array, "B T V"]:
    """Split the batch axis of logits like the residual stream's, and leave the others to XLA.

    Without it, XLA moves features on TPUs, and not the head, where both are about as large.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return logits
    free = PartitionSpec.UNCONSTRAINED
    return lax.with_sharding_constraint(logits, PartitionSpec(row_axes(), free, free))
