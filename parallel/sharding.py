"""Say which device holds what: one table from a parameter's name to the mesh axes that split its own axes.

Everything else follows. The model is written as if for one device. Inside `jax.set_mesh(mesh)`, XLA reads the
shardings of a compiled function's arguments and results, splits its arrays accordingly, and inserts the
communication. To change the strategy, change the table or the mesh. An optimizer's moments end with their
parameter's name, so the table holds for them too.

Inside the model only the residual stream has a sharding constraint (layers/stack.py).
"""

import math
import re
from typing import Any

import equinox as eqx
import jax
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from layers.compute import here

# The first pattern that matches the end of a name counts. Axes that a rule does not mention are not split.
RULES = (
    # Rows of the vocabulary over both axes: with rows over one and D over the other, XLA recomputes.
    (r"wte|lm_head", (("tensor", "fsdp"),)),  # (V, D)
    (r"wpe", (None, "fsdp")),  # (T, D)
    # `stage` splits the blocks. In attention and in the MLP, `tensor` splits the outputs of the first linear
    # layers and the inputs of the last, so that the devices sum once for each of the two.
    (r"(c_q|c_k|c_v)\.weight", ("stage", "fsdp", "tensor")),  # (L, D, H, C), (L, D, K, C)
    (r"(c_q|c_k|c_v)\.bias", ("stage", "tensor")),  # (L, H, C), (L, K, C)
    (r"(head_gate|c_gate|c_fc)\.weight", ("stage", "fsdp", "tensor")),  # (L, D, H), (L, D, F)
    (r"(head_gate|c_gate|c_fc)\.bias", ("stage", "tensor")),  # (L, H), (L, F)
    (r"c_proj\.weight", ("stage", "tensor", "fsdp")),  # (L, H C, D), (L, F, D)
    # An adapter is split along the axis that it shares with the layer's own split one (training/lora.py).
    (
        r"(c_q|c_k|c_v|head_gate|c_gate|c_fc)\.lora_b",
        ("stage", None, "tensor"),
    ),  # (L, r, H, C), (L, r, K, C), (L, r, F)
    (r"c_proj\.lora_a", ("stage", "tensor")),  # (L, H C, r), (L, F, r)
    # A norm's weight is split like the input axis of the layers that it moves into (`fold_norms`).
    (r"ln_[12]\.weight", ("stage", "fsdp")),  # (L, D)
    (r"blocks\..*", ("stage",)),  # (L, D), (L, C): what is left of the norms
    (r".*", ()),  # what is left is small, and every device has it
)


def leaf_name(path: tuple[Any, ...]) -> str:
    """Name an array of a tree by its path, as in blocks.attn.c_q.weight. Checkpoints and hub/ use these."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def is_matrix(path, x) -> bool:
    """Tell a matrix from a vector. Arrays of blocks have a layer axis; a bias may have two more, (H, C)."""
    return path[-1].name != "bias" and x.ndim - (path[0].name == "blocks") >= 2


def spec_of(name: str, shape: tuple[int, ...]) -> P:
    """Return the PartitionSpec of the array of that name. An axis that does not divide evenly is not split.

    Within `jax.shard_map` the shape is a device's own, and the mesh axes that it has split already are not
    split again.
    """
    axes = next(axes for pattern, axes in RULES if re.search(rf"(^|\.)({pattern})$", name))
    axes += (None,) * (len(shape) - len(axes))
    return P(*(axes_that_split(axis, size) for axis, size in zip(axes, shape, strict=True)))


def axes_that_split(rule: str | tuple[str, ...] | None, size: int) -> tuple[str, ...] | None:
    """Return the mesh axes of a rule that split an array's axis of this size."""
    place = here()
    names = rule if isinstance(rule, tuple) else (rule,) if rule else ()
    left = tuple(name for name in names if name not in place.manual)
    parts = math.prod(place.sizes[name] for name in left)
    return left if parts > 1 and size % parts == 0 else None


def specs_of(tree):
    """Apply `spec_of` to every array of a tree."""
    return jax.tree_util.tree_map_with_path(lambda path, x: spec_of(leaf_name(path), x.shape), tree)


def shard(tree):
    """Lay out the arrays of a tree by the table, inside a compiled function. Without a mesh, do nothing."""
    return eqx.filter_shard(tree, specs_of(tree)) if here().on_mesh else tree


def layout(tree):
    """Return what `eqx.filter_shard` lays a tree out by: the table's specs, or without a mesh one device."""
    return specs_of(tree) if here().on_mesh else SingleDeviceSharding(jax.devices()[0])


def batch_layout(ndim: int) -> P | SingleDeviceSharding:
    """Return the same for a batch (..., B, T), whose rows are split over data and fsdp."""
    if not here().on_mesh:
        return SingleDeviceSharding(jax.devices()[0])
    return P(*[None] * (ndim - 2), ("data", "fsdp"), None)


def shard_batch(batch: Int[Array, "... B T"]) -> Int[Array, "... B T"]:
    """Split a batch's rows over data and fsdp, inside a compiled function. Without a mesh, do nothing."""
    return eqx.filter_shard(batch, batch_layout(batch.ndim)) if here().on_mesh else batch


def with_shardings(shapes):
    """Add the table's shardings to a tree of ShapeDtypeStructs, to restore or compile for.

    Without a mesh, do nothing.
    """
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        return shapes
    return jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)),
        shapes,
        specs_of(shapes),
    )


def batch_sharding(ndim: int) -> NamedSharding | None:
    """Return the sharding of a batch (..., B, T): rows are split over data and fsdp. None without a mesh."""
    mesh = jax.sharding.get_mesh()
    return None if mesh.empty else NamedSharding(mesh, P(*[None] * (ndim - 2), ("data", "fsdp"), None))


def sharding_table(shapes) -> str:
    """Describe every array of a tree from `with_shardings`: shape, spec and size per device, a line each."""
    rows = [("parameter", "shape", "spec", "MB per device")]
    total = 0
    for path, x in jax.tree_util.tree_leaves_with_path(shapes):
        here = math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        total += here
        split = ", ".join(str(axis) for axis in x.sharding.spec)
        rows.append((leaf_name(path), str(x.shape), f"P({split})", f"{here / 1e6:.3f}"))
    rows.append(("all", "", "", f"{total / 1e6:.3f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def draw_sharding(shapes) -> None:
    """Print pictures of the three largest arrays that are split; the sides are their first two split axes."""
    split = [(path, x) for path, x in jax.tree_util.tree_leaves_with_path(shapes) if any(x.sharding.spec)]
    for path, x in sorted(split, key=lambda item: -item[1].size)[:3]:
        sides = [i for i, axis in enumerate(x.sharding.spec) if axis][:2]
        sharding = NamedSharding(x.sharding.mesh, P(*(x.sharding.spec[i] for i in sides)))
        print(f"\n{leaf_name(path)}: axes {sides} of {x.shape}")
        jax.debug.visualize_sharding([x.shape[i] for i in sides], sharding)
