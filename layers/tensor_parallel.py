"""Linear layers that read the same x, on a mesh whose axis `tensor` splits their outputs."""

import jax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

# `tensor` splits the first output axis of a linear layer's arrays, wherever they have it.
SPECS = {"weight": P(None, "tensor"), "bias": P("tensor"), "lora_a": P(), "lora_b": P(None, "tensor")}


def apply_each(layers: list, x: Float[Array, "B T D"]) -> list[Float[Array, "B T *o"]]:
    """Return `layer(x)` for each of the layers; the devices along `tensor` sum x's gradient once for all.

    Left alone, XLA sums the devices' parts of x's gradient for each layer, and adds the sums: for queries,
    keys and values it communicates three times as much.
    """
    mesh = jax.sharding.get_abstract_mesh()
    n = 1 if mesh.empty else mesh.shape["tensor"]
    if n == 1 or any(layer.weight.shape[1] % n for layer in layers):
        return [layer(x) for layer in layers]
    specs = jax.tree_util.tree_map_with_path(lambda path, _: SPECS[path[-1].name], layers)
    return jax.shard_map(
        lambda layers, x: [layer(x) for layer in layers],
        in_specs=(specs, P()),
        out_specs=P(None, None, "tensor"),
        axis_names={"tensor"},
        check_vma=False,
    )(layers, x)
