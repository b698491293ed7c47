"""Look tokens up in a table. If a mesh splits it, devices send it once, in the dtype of the products.

For GPT-2 cut to 2 layers, on eight H100 with fsdp:8, a device sends 0.51 GB in a microbatch, and sent 0.71
without this, as planned (docs/benchmarks.md has the command).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers import products


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def look_up(table: Float[Array, "V D"], tokens: Int[Array, "B T"], dtype: str) -> Float[Array, "B T D"]:
    """Return the tokens' rows of the table, float32, rounded as products of operands in `dtype` are.

    The gradient is float32. Where `fsdp` splits the table, XLA gathers it after the rounding.
    """
    return table.astype(products.result_dtype(dtype))[tokens].astype(jnp.float32)


def _forward(table, tokens, dtype):
    return look_up(table, tokens, dtype), (table, tokens)


def _backward(dtype, saved, dy):
    table, tokens = saved
    gradient = jnp.zeros_like(table).at[tokens].add(dy.astype(table.dtype))
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.shape["fsdp"] * mesh.shape["tensor"] > 1:
        # Without the barrier, XLA gathers a tied head's gradient, which is split, to add this one in place.
        gradient = jax.lax.optimization_barrier(gradient)
    return gradient, None


look_up.defvjp(_forward, _backward)
