"""Which device holds what: a table from a parameter's name to the mesh axes that split it, and the batches.

The table holds for an optimizer's moments too, whose names end with their parameter's. XLA splits the rest of
a compiled function accordingly, and inserts the communication.
"""

import math
import re
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from config.options import Options
from data.batches import Batches
from data.dataset import Dataset
from parallel.mesh import constrain, current_mesh

# The first pattern that matches the end of a name applies.
RULES = (
    (r"wte|lm_head", (("tensor", "fsdp"),)),  # (V, D)
    (r"wpe", (None, "fsdp")),  # (T, D)
    # `tensor` splits the outputs of the first layers and the inputs of the last: one sum over devices for
    # attention, and one for the MLP.
    (r"(c_q|c_k|c_v)\.weight", ("stage", "fsdp", "tensor")),  # (L, D, H, C), (L, D, K, C)
    (r"(c_q|c_k|c_v)\.bias", ("stage", "tensor")),  # (L, H, C), (L, K, C)
    (r"(head_gate|c_gate|c_fc)\.weight", ("stage", "fsdp", "tensor")),  # (L, D, H), (L, D, F)
    (r"(head_gate|c_gate|c_fc)\.bias", ("stage", "tensor")),  # (L, H), (L, F)
    (r"c_proj\.weight", ("stage", "tensor", "fsdp")),  # (L, H C, D), (L, F, D)
    # An adapter is split along the split axis that it shares with its layer (training/lora.py).
    (r"(c_q|c_k|c_v|head_gate|c_gate|c_fc)\.lora_b", ("stage", None, "tensor")),  # (L, r, H, C), (L, r, F)
    (r"c_proj\.lora_a", ("stage", "tensor")),  # (L, H C, r), (L, F, r)
    # Like the input axis of the layers that it is folded into (`fold_norms`).
    (r"ln_[12]\.weight", ("stage", "fsdp")),  # (L, D)
    (r"blocks\..*", ("stage",)),  # (L, D), (L, C): other norms
    (r".*", ()),  # all else is small, and replicated
)


def leaf_name(path: tuple[Any, ...]) -> str:
    """Name an array of a tree by its path, as in blocks.attn.c_q.weight, also where a layer is `wrapped`."""
    return jax.tree_util.keystr(path, simple=True, separator=".").replace("wrapped.", "")


def is_matrix(path, x) -> bool:
    """Tell a matrix from a vector: a layer axis does not count, and a bias may be (H, C)."""
    return path[-1].name != "bias" and x.ndim - (path[0].name == "blocks") >= 2


def spec_of(name: str, shape: tuple[int, ...]) -> P:
    """Return the PartitionSpec of an array. An axis that does not divide evenly is not split.

    Within `jax.shard_map`, the shape is the device's own, and manual mesh axes are left out.
    """
    rule = next(axes for pattern, axes in RULES if re.search(rf"(^|\.)({pattern})$", name))
    rule += (None,) * (len(shape) - len(rule))
    return P(*(axes_that_split(axes, size) for axes, size in zip(rule, shape, strict=True)))


def axes_that_split(axes: str | tuple[str, ...] | None, size: int) -> tuple[str, ...] | None:
    mesh = current_mesh()
    names = (axes,) if isinstance(axes, str) else axes or ()
    automatic = tuple(name for name in names if name not in mesh.manual_axes)
    parts = math.prod(mesh.shape[name] for name in automatic)
    return automatic if parts > 1 and size % parts == 0 else None


def specs_of(tree):
    return jax.tree_util.tree_map_with_path(lambda path, x: spec_of(leaf_name(path), x.shape), tree)


def shard(tree):
    """Constrain the arrays of a tree to the table's shardings."""
    return eqx.filter_shard(tree, specs_of(tree)) if current_mesh().size > 1 else tree


# Without this in each layer, XLA replicates the batch, and moves activations instead of `fsdp`'s weights.
def shard_residual(x: Float[Array, "*leading B T D"]) -> Float[Array, "*leading B T D"]:
    """Constrain x's batch axis to be split over `data` and `fsdp`."""
    return constrain(x, *[None] * (x.ndim - 3), ("data", "fsdp"))


def state_sharding(state):
    """Return a state's shardings for `eqx.filter_shard`."""
    no_mesh = jax.sharding.get_abstract_mesh().empty
    return SingleDeviceSharding(jax.devices()[0]) if no_mesh else specs_of(state)


def sharding_of(spec: P) -> Sharding:
    """Return the sharding that a spec means on the mesh; without a mesh, that of the first device."""
    mesh = jax.sharding.get_mesh()
    return SingleDeviceSharding(jax.devices()[0]) if mesh.empty else NamedSharding(mesh, spec)


def with_shardings(shapes):
    """Add the table's shardings to a tree of ShapeDtypeStructs."""
    return jax.tree.map(lambda x, spec: x.update(sharding=sharding_of(spec)), shapes, specs_of(shapes))


def sharding_table(shapes) -> str:
    """Describe each array of a tree from `with_shardings` in a line."""
    lines = [f"{'parameter':<32} {'shape':<20} {'spec':<30} MB per device"]
    total = 0
    for path, x in jax.tree.leaves_with_path(shapes):
        size = math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        total += size
        spec = f"P({', '.join(str(axis) for axis in x.sharding.spec)})"
        lines.append(f"{leaf_name(path):<32} {x.shape!s:<20} {spec:<30} {size / 1e6:.3f}")
    return "\n".join([*lines, f"{'all':<84} {total / 1e6:.3f}"])


def batch_sharding(ndim: int) -> Sharding:
    """Return the sharding of a batch (..., B, T), whose rows are split over data and fsdp."""
    return sharding_of(P(*[None] * (ndim - 2), ("data", "fsdp"), None))


def distribute(rows: Int[np.ndarray, "... B T"]) -> Int[Array | np.ndarray, "... B T"]:
    """Give this process's devices their rows of a batch, which all processes have made."""
    if jax.process_count() == 1:
        return rows  # a compiled function takes it from here faster than any call of ours
    return jax.make_array_from_callback(rows.shape, batch_sharding(rows.ndim), rows.__getitem__)


def batch_shape(*shape: int) -> jax.ShapeDtypeStruct:
    """Describe a batch of that shape, to compile a function for it."""
    return jax.ShapeDtypeStruct(shape, np.int32, sharding=batch_sharding(len(shape)))


class StepBatches:
    """The batches of a run's steps: `batches(i)` returns x and y of step i, int32 (A, B, T)."""

    def __init__(self, options: Options, dataset: Dataset):
        A, B, T = self.shape = (options.gradient_accumulation_steps, options.batch_size, options.block_size)
        self.rows = Batches(dataset, "train", A * B, T, options.seed, options.sampling)

    def __call__(self, i: int) -> tuple[Int[Array | np.ndarray, "A B T"], Int[Array | np.ndarray, "A B T"]]:
        x, y = self.rows(i)
        return distribute(x.reshape(self.shape)), distribute(y.reshape(self.shape))
