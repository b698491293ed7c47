"""The activations: values and gradients are PyTorch's, and their inputs alone are kept for the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from layers.activation import gelu, relu2, swiglu

PYTORCH = {
    gelu: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    relu2: lambda x: torch.nn.functional.relu(x) ** 2,
    swiglu: lambda gate, x: torch.nn.functional.silu(gate) * x,
}


def inputs(n, dtype=np.float32):
    return np.random.default_rng(0).normal(size=(n, 2, 5, 16)).astype(dtype)


@pytest.mark.parametrize("activation, n", [(gelu, 1), (relu2, 1), (swiglu, 2)])
def test_values_and_gradients_are_pytorchs(activation, n):
    x, dy = inputs(n), inputs(n + 1)[-1]
    y, back = jax.vjp(activation, *x)
    theirs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in x]
    expected = PYTORCH[activation](*theirs)
    expected.backward(torch.tensor(dy, dtype=torch.float64))
    # About ten operations on numbers up to 4, rounded to 2^-24; 1 - tanh^2 is multiplied by 5 at most.
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-6, atol=1e-6)
    for ours, a in zip(back(dy), theirs, strict=True):
        np.testing.assert_allclose(ours, a.grad, rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("activation, n", [(gelu, 1), (relu2, 1), (swiglu, 2)])
def test_the_inputs_alone_are_kept_for_the_gradient(activation, n):
    x = jnp.asarray(inputs(n), jnp.bfloat16)
    y, back = jax.vjp(activation, *x)
    assert y.dtype == jnp.bfloat16
    kept = jax.tree.leaves(back)
    assert len(kept) == n
    assert all((a == b).all() for a, b in zip(kept, x, strict=True))
