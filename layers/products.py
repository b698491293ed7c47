"""Matrix products: operands in a chosen dtype, sums in float32, and a gradient that is fast on CPUs."""

import re
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from layers.device import device


@partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def contract(subscripts: str, a: Array, b: Array, dtype: str, out=None) -> Array:
    """Compute `einsum` of two arrays with operands in `dtype`, summed in float32; the result is in `out`.

    Without `out` the result is in `result_dtype(dtype)`. Each index occurs at least twice in a, b and the
    result, so that none is summed over one operand alone.

    The gradients are such products too, in the dtypes of a and b. JAX's own are slow on CPUs: they multiply
    in float32 where the result is float32, and contract axes in orders that XLA's CPU library does not take,
    so that XLA makes transposed copies first. A step of the CPU Shakespeare run took 81 ms with JAX's in the
    linear layers and 47 with these; later 22 with JAX's in attention and 19 with these (docs/benchmarks.md).
    """
    out = out or result_dtype(dtype)
    return jnp.einsum(subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=out)


def _contract_forward(subscripts, a, b, dtype, out):
    return contract(subscripts, a, b, dtype, out), (a, b)


def _contract_backward(subscripts, dtype, out, saved, dy):
    a, b = saved
    in_a, in_b, in_y = re.split(",|->", subscripts)
    da = contract(f"{in_y},{in_b}->{in_a}", dy, b, dtype, out=a.dtype)
    db = contract(f"{in_a},{in_y}->{in_b}", a, dy, dtype, out=b.dtype)
    return da, db


contract.defvjp(_contract_forward, _contract_backward)


def result_dtype(dtype: str) -> str:
    """Return the dtype of what a product of operands in `dtype` gives: on a CPU float32, else `dtype`."""
    # CPUs sum bfloat16 products in float32 anyway; rounding the result would cost them extra time.
    return "float32" if device().platform == "cpu" else dtype


def matmul(x: Float[Array, "B T i"], w: Float[Array, "i *o"], dtype: str) -> Float[Array, "B T *o"]:
    """Compute x @ w as `contract` does. The output may have several axes, such as heads and head size.

    B and T stay two axes: as one, XLA's CPU library would not take the weight gradient in bfloat16.
    """
    y = contract("btd,df->btf", x, flat(w), dtype)
    return y.reshape(*x.shape[:2], *w.shape[1:])


def flat(w: Float[Array, "i *o"]) -> Float[Array, "i f"]:
    """Return w with its output axes as one.

    A TPU keeps arrays in tiles, which heads of 64 fill by half. Flat weights are smaller where `fsdp` gathers
    them: for GPT-2 on eight v5e, 1.10 GB are sent in a step instead of 1.17 (docs/benchmarks.md).
    """
    return w.reshape(len(w), -1)
