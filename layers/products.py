"""Matrix products: operands in a chosen dtype, sums in float32, and a gradient that is fast on CPUs."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from layers.target import target


def contract(subscripts: str, a: Array, b: Array, dtype: str, out=None) -> Array:
    """Compute `einsum` of two arrays with operands in `dtype`, summed in float32; the result is in `out`.

    Without `out` the result is in `result_dtype(dtype)`.
    """
    out = out or result_dtype(dtype)
    return jnp.einsum(subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=out)


def result_dtype(dtype: str) -> str:
    """Return the dtype of what a product of operands in `dtype` gives: on a CPU float32, else `dtype`."""
    # CPUs sum bfloat16 products in float32 anyway; rounding the result would cost them extra time.
    return "float32" if target().platform == "cpu" else dtype


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Float[Array, "B T i"], w: Float[Array, "i *o"], dtype: str) -> Float[Array, "B T *o"]:
    """Compute x @ w as `contract` does. The output may have several axes, such as heads and head size.

    JAX's own gradient is slow on CPUs: XLA makes a transposed copy of x for the weight gradient, and fuses
    all that led to x into it. The gradient below contracts B and T as two axes, which avoids that, and which
    XLA's CPU library takes in bfloat16 too. It took the CPU Shakespeare step from 81 to 47 ms.
    The weight gradient is float32.
    """
    y = contract("btd,df->btf", x, flat(w), dtype)
    return y.reshape(*x.shape[:2], *w.shape[1:])


def _matmul_forward(x, w, dtype):
    return matmul(x, w, dtype), (x, w)


def _matmul_backward(dtype, saved, dy):
    x, w = saved
    dy = dy.reshape(*x.shape[:2], -1)
    dx = contract("btf,df->btd", dy, flat(w), dtype).astype(x.dtype)
    dw = contract("btd,btf->df", x, dy, dtype, out=jnp.float32)
    return dx, dw.reshape(w.shape)


matmul.defvjp(_matmul_forward, _matmul_backward)


def flat(w: Float[Array, "i *o"]) -> Float[Array, "i f"]:
    """Return w with its output axes as one.

    A TPU keeps arrays in tiles, which heads of 64 fill by half. Flat weights are smaller where `fsdp` gathers
    them: for GPT-2 on eight v5e, 1.10 GB are sent in a step instead of 1.17 (docs/benchmarks.md).
    """
    return w.reshape(len(w), -1)
