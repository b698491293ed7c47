"""The MLP's activations. The backward pass keeps only their inputs, and computes the rest again.

Left alone, XLA keeps what it has computed on the way, in float32 too, and makes SwiGLU's two gradients in two
kernels, each of which reads all of that. This took GPT-2's step on an H100 from 114.5 to 111.5 ms, as planned
(docs/benchmarks.md has the command).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.checkpoint
def gelu(x: Float[Array, "*batch F"]) -> Float[Array, "*batch F"]:
    """Compute GELU in the tanh form, as GPT-2 does (arXiv:1606.08415)."""
    return jax.nn.gelu(x, approximate=True)


@jax.checkpoint
def relu2(x: Float[Array, "*batch F"]) -> Float[Array, "*batch F"]:
    """Compute the square of relu(x) (arXiv:2109.08668)."""
    return jnp.square(jax.nn.relu(x))


@jax.checkpoint
def swiglu(gate: Float[Array, "*batch F"], x: Float[Array, "*batch F"]) -> Float[Array, "*batch F"]:
    """Compute silu(gate) * x (arXiv:2002.05202)."""
    return jax.nn.silu(gate) * x
