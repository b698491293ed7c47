"""Attention's kernels compute what einsum does, each device its rows and heads."""

from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fast import How, faster, fused_attention
from model import GPT, GPTConfig, attention, causal_mask
from parallel.mesh import make_mesh
from tests.helpers import FLOAT32_ROUNDING, distance, slowly

B, H, K, T, C = 4, 4, 2, 256, 8


def functions(documents: bool, window: int | None, C: int, how: How):
    """Return two functions for (y, dq, dk, dv), by a kernel and by einsum, and random q, k, v and dy."""
    random = np.random.default_rng(0)
    arrays = [jnp.asarray(random.normal(size=(B, n, T, C)), jnp.float32) for n in (H, K, K, H)]
    begins = np.where(random.random((B, T)) < 0.03, np.arange(T), 0)
    begins = jnp.asarray(np.maximum.accumulate(begins, axis=1)) if documents else None
    mask = causal_mask(jnp.arange(T)[None], T, window, begins)

    def with_gradients(attend, q, k, v, dy):
        y, pull = jax.vjp(attend, q, k, v)
        return y, *pull(dy)

    by_kernel = partial(with_gradients, lambda *qkv: fused_attention(*qkv, begins, window, how))
    by_einsum = partial(with_gradients, lambda *qkv: attention(*qkv, mask))
    return jax.jit(by_kernel), jax.jit(by_einsum), arrays


@pytest.mark.parametrize(
    "documents, window, mesh",
    [
        (True, 50, "data:2,fsdp:2,tensor:2"),
        *slowly(
            (False, 10**6, "data:2,fsdp:2,tensor:2"),
            (False, None, None),
            (True, None, "data:2,fsdp:2,tensor:2"),
        ),
    ],
)
@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_a_kernel_computes_what_einsum_does_and_its_gradient(kernel, documents, window, mesh):
    # Here splash is interpreted, and JAX does itself what it would ask of cuDNN.
    by_kernel, by_einsum, arrays = functions(documents, window, C, How(kernel=kernel))
    arrays = [3 * x for x in arrays]
    expected = by_einsum(*arrays)
    with jax.set_mesh(make_mesh(mesh)) if mesh else nullcontext():
        found = by_kernel(*arrays)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < FLOAT32_ROUNDING


def test_a_single_row_is_computed_on_a_mesh_as_on_one_device():
    """As the server's views ask for it."""
    by_kernel, by_einsum, arrays = functions(False, None, C, How(kernel="cudnn"))
    arrays = [x[:1] for x in arrays]
    with jax.set_mesh(make_mesh("fsdp:2,tensor:2")):
        found = by_kernel(*arrays)
    for one, other in zip(found, by_einsum(*arrays), strict=True):
        assert distance(one, other) < FLOAT32_ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_each_device_computes_its_own_rows_and_heads_and_sends_nothing(kernel, optimized):
    q, k, v = (jnp.zeros((B, n, T, C)) for n in (H, K, K))
    documents = jnp.zeros((B, T), jnp.int32)
    with jax.set_mesh(make_mesh("data:2,fsdp:2,tensor:2")):
        place = jax.sharding.PartitionSpec(("data", "fsdp"), "tensor")
        operands = [jax.device_put(x, place) for x in (q, k, v)]

        def loss(q, k, v):
            return fused_attention(q, k, v, documents, 50, How(kernel=kernel))

        program = jax.jit(loss).lower(*operands).compile().as_text()
    assert f"f32[1,{H // 2},{T},{C}]" in program or f"f32[1,{T},{H // 2},{C}]" in program
    for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert word not in program


@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_dropout_and_odd_lengths_are_left_to_einsum(kernel):
    for T, rate in ((128, 0.1), (127, 0.0)):
        q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 2, T, C))
        config = GPTConfig(n_head=2, n_embd=2 * C, n_layer=1, vocab_size=9, window=20, dropout=rate)
        model, tokens = GPT(config, key=jax.random.key(2)), jnp.ones((1, T), jnp.int32)
        found, expected = (
            faster(model, How(kernel=name)).causal_attention(tokens)[1](q, k, v, jax.random.key(1))
            for name in (kernel, "einsum")
        )
        np.testing.assert_array_equal(found, expected)
