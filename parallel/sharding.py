"""Which device holds what: one table from a parameter's name to the mesh axes that cut its own axes.

Everything else follows. The model is written as if for one device; inside `jax.set_mesh(mesh)`, XLA reads the
shardings of a compiled function's arguments and results, cuts its arrays accordingly, and inserts the
communication. Changing the strategy is changing the table or the mesh. An optimizer's moments have their
parameter's name at the end of their own, so the table holds for them too.

Only the residual stream has its sharding written down inside the model (`model.over_batch`). Without that XLA
would keep the weights where they are, replicate the batch and move activations, which are larger.
"""

import math
import re

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from model import dotted

# The first rule whose pattern is the end of the name counts. `...` stands for axes that are not cut.
RULES = (
    # Vocabulary rows over both axes: with rows over one and D over the other, XLA recomputes or is wrong.
    (r"wte|lm_head", (("tensor", "fsdp"), ...)),  # (V, D)
    (r"wpe", (..., "fsdp")),  # (T, D)
    # Of the blocks, a stage's devices have its layers.
    # `tensor` cuts what goes in by columns, and what comes out by rows: one sum over devices after each pair.
    (r"attn\.c_attn\.weight", ("stage", "fsdp", "tensor", ...)),  # (L, D, K, G + 2, C)
    (r"attn\.c_attn\.bias", ("stage", "tensor", ...)),  # (L, K, G + 2, C)
    (r"mlp\.c_fc\.weight", ("stage", "fsdp", ..., "tensor")),  # (L, D, F) or (L, D, 2, F)
    (r"mlp\.c_fc\.bias", ("stage", ..., "tensor")),  # (L, F) or (L, 2, F)
    (r"c_proj\.weight", ("stage", "tensor", "fsdp")),  # (L, H C, D) and (L, F, D)
    # Of an adapter, only the axis that it shares with the cut side of its layer is cut (training/lora.py).
    (r"attn\.c_attn\.lora_b", ("stage", None, "tensor", ...)),  # (L, r, K, G + 2, C)
    (r"mlp\.c_fc\.lora_b", ("stage", ..., "tensor")),  # (L, r, F) or (L, r, 2, F)
    (r"c_proj\.lora_a", ("stage", "tensor", None)),  # (L, H C, r) and (L, F, r)
    (r"blocks\..*", ("stage", ...)),  # (L, D): norms
    (r".*", (...,)),  # norms, the rest and counters are small: every device has them
)


def spec(name: str, shape: tuple[int, ...], mesh) -> P:
    """How the array of that name lies on the mesh. An axis of it that does not divide is left whole.

    Within `jax.shard_map` it is of what a device has there: the axes that it has cut already do not count.
    """
    axes = next(axes for pattern, axes in RULES if re.search(rf"(^|\.)({pattern})$", name))
    if ... in axes:
        i = axes.index(...)
        axes = (*axes[:i], *[None] * (len(shape) - len(axes) + 1), *axes[i + 1 :])
    return P(*(axis if cuts(axis, size, mesh) else None for axis, size in zip(axes, shape, strict=True)))


def cuts(axis: str | tuple[str, ...] | None, size: int, mesh) -> bool:
    if axis is None:
        return False
    names = axis if isinstance(axis, tuple) else (axis,)
    cut_already = mesh.abstract_mesh.manual_axes  # by `jax.shard_map`
    parts = math.prod(mesh.shape[name] for name in names if name not in cut_already)
    return parts > 1 and size % parts == 0


def specs(tree, mesh):
    """`spec` of every array in a tree, in its structure."""
    return jax.tree_util.tree_map_with_path(lambda path, x: spec(dotted(path), x.shape, mesh), tree)


def shard(tree):
    """A tree inside a compiled function, with its arrays laid out by the table. Without a mesh, as it is."""
    mesh = jax.sharding.get_abstract_mesh()
    return tree if mesh.empty else jax.lax.with_sharding_constraint(tree, specs(tree, mesh))


def on_mesh(shapes):
    """Shapes and dtypes of a tree, with the shardings of the table: what to restore, or to compile for.

    Without a mesh, as they are.
    """
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        return shapes
    return jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)),
        shapes,
        specs(shapes, mesh),
    )


def over_rows(ndim: int) -> NamedSharding | None:
    """The sharding of a batch (..., B, T): its rows are cut along the axes that share the batch."""
    mesh = jax.sharding.get_mesh()
    return None if mesh.empty else NamedSharding(mesh, P(*[None] * (ndim - 2), ("data", "fsdp"), None))


def sharding_table(shapes) -> str:
    """Shape, spec and size per device of every array of a tree from `on_mesh`, a line each."""
    rows = [("parameter", "shape", "spec", "MB per device")]
    total = 0
    for path, x in jax.tree_util.tree_leaves_with_path(shapes):
        here = math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        total += here
        cut = ", ".join(str(axis) for axis in x.sharding.spec)
        rows.append((dotted(path), str(x.shape), f"P({cut})", f"{here / 1e6:.3f}"))
    rows.append(("all", "", "", f"{total / 1e6:.3f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def draw_sharding(shapes) -> None:
    """Prints a picture of the largest arrays that are cut, with their two longest cut axes as its sides."""
    cut = [(path, x) for path, x in jax.tree_util.tree_leaves_with_path(shapes) if any(x.sharding.spec)]
    for path, x in sorted(cut, key=lambda item: -item[1].size)[:3]:
        sides = [i for i, axis in enumerate(x.sharding.spec) if axis][:2]
        sharding = NamedSharding(x.sharding.mesh, P(*(x.sharding.spec[i] for i in sides)))
        print(f"\n{dotted(path)}: axes {sides} of {x.shape}")
        jax.debug.visualize_sharding([x.shape[i] for i in sides], sharding)
