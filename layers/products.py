"""Linear layers, matrix products and embedding lookups whose gradients are fast.

They compute what `@`, `einsum` and indexing do, with operands in a chosen dtype and sums in float32. A
product's gradients are such products too: JAX's own are in float32 where the result is, and in orders of
axes that XLA's library for CPUs does not take (docs/history.md).
"""

import re
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PRNGKeyArray

from layers.compute import Compute, current_mesh


@partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def product(subscripts: str, a: Array, b: Array, dtype: str, result: str = "float32") -> Array:
    """Compute `einsum` of two arrays. Each index occurs in at least two of a, b and the result."""
    return jnp.einsum(subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=result)


def _product_forward(subscripts, a, b, dtype, result):
    return product(subscripts, a, b, dtype, result), (a, b)


def _product_backward(subscripts, dtype, result, saved, dy):
    a, b = saved
    in_a, in_b, in_y = re.split(",|->", subscripts)
    da = product(f"{in_y},{in_b}->{in_a}", dy, b, dtype, a.dtype.name)
    db = product(f"{in_a},{in_y}->{in_b}", a, dy, dtype, b.dtype.name)
    return da, db


product.defvjp(_product_forward, _product_backward)


class Linear(eqx.Module):
    """x @ weight + bias. Weights are stored (in, out), as in GPT-2; `out` may be several axes, as (H, C)."""

    weight: Float[Array, "i *o"]
    bias: Float[Array, "*o"] | None
    compute: Compute = eqx.field(static=True)
    matrix: ClassVar[bool] = True  # to Muon and LoRA
    # How the mesh axis `tensor` splits each array: along the first output axis.
    tensor_specs: ClassVar[dict[str, P]] = {"weight": P(None, "tensor"), "bias": P("tensor")}

    def __init__(
        self, config, fan_in: int, *fan_out: int, bias: bool = False, std: float = 0.02, key: PRNGKeyArray
    ):
        self.weight = std * jax.random.normal(key, (fan_in, *fan_out))
        self.bias = jnp.zeros(fan_out) if config.bias or bias else None
        self.compute = config.compute

    def __call__(self, x: Float[Array, "B T i"]) -> Float[Array, "B T *o"]:
        y = linear(x, self.weight, self.compute)
        return y if self.bias is None else y + self.bias.astype(y.dtype)

    def scale_inputs(self, g: Float[Array, " i"]) -> "Linear":
        """Return the layer that computes from x what this one computes from x * g."""
        weight = jnp.expand_dims(g, range(1, self.weight.ndim)) * self.weight
        return eqx.tree_at(lambda layer: layer.weight, self, weight)


def is_linear(x) -> bool:
    return isinstance(x, Linear)


# B and T stay two axes for the sake of XLA's library for CPUs. The output axes become one, since heads of 64
# would half fill a TPU's tiles.
def linear(x: Float[Array, "B T i"], w: Float[Array, "i *o"], compute: Compute) -> Float[Array, "B T *o"]:
    y = product("btd,df->btf", x, w.reshape(len(w), -1), compute.dtype, compute.result)
    return checkpoint_name(y.reshape(*x.shape[:2], *w.shape[1:]), "linear")  # for remat: see layers/stack.py


def apply_each(layers: list[Linear], x: Float[Array, "B T D"]) -> list[Float[Array, "B T *o"]]:
    """Return `layer(x)` for each of the layers; where `tensor` splits them, x's gradient is summed once."""
    n = current_mesh().shape["tensor"]
    if n == 1 or any(layer.weight.shape[1] % n for layer in layers):
        return [layer(x) for layer in layers]

    def specs(layer):
        return jax.tree.map_with_path(lambda path, _: layer.tensor_specs[path[-1].name], layer)

    return jax.shard_map(
        lambda layers, x: [layer(x) for layer in layers],
        in_specs=([specs(layer) for layer in layers], P()),
        out_specs=P(None, None, "tensor"),
        axis_names={"tensor"},
        check_vma=False,
    )(layers, x)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def embedding_lookup(
    table: Float[Array, "V D"], tokens: Int[Array, "B T"], dtype: str
) -> Float[Array, "B T D"]:
    """Return the tokens' rows of the table, rounded to `dtype`, in float32."""
    return table.astype(dtype)[tokens].astype(jnp.float32)


def _lookup_forward(table, tokens, dtype):
    return embedding_lookup(table, tokens, dtype), (table, tokens)


def _lookup_backward(dtype, saved, dy):
    table, tokens = saved
    gradient = jnp.zeros_like(table).at[tokens].add(dy.astype(table.dtype))
    mesh = current_mesh()
    if mesh.shape["fsdp"] * mesh.shape["tensor"] > 1:
        # Without the barrier, XLA gathers a tied head's gradient, which is split, to add this one in place.
        gradient = lax.optimization_barrier(gradient)
    return gradient, None


embedding_lookup.defvjp(_lookup_forward, _lookup_backward)
