"""Attention's kernels compute what einsum does, each device its rows and heads; `auto` takes the fastest."""

from contextlib import nullcontext
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from config.options import Options
from fast import fastest_attention, fused_attention
from model import Compute, causal_mask
from parallel.mesh import make_mesh
from tests.helpers import CPU, FLOAT32_ROUNDING, H100, V5E, distance, on, refusal
from training.state import model_config

B, H, K, T, C = 4, 4, 2, 256, 8


@pytest.mark.parametrize(
    "documents, window, mesh",
    [
        (False, None, None),
        (True, 50, None),
        (False, 10**6, "data:2,fsdp:2,tensor:2"),
        (True, None, "data:2,fsdp:2,tensor:2"),
        (True, 50, "data:2,fsdp:2,tensor:2"),
    ],
)
@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_a_kernel_computes_what_einsum_does_and_its_gradient(kernel, documents, window, mesh):
    # Here splash is interpreted, and JAX does itself what it would ask of cuDNN.
    random = np.random.default_rng(0)
    heads = (H, K, K, H)
    q, k, v, dy = (jnp.asarray(3 * random.normal(size=(B, n, T, C)), jnp.float32) for n in heads)
    begins = np.where(random.random((B, T)) < 0.03, np.arange(T), 0)
    begins = jnp.asarray(np.maximum.accumulate(begins, axis=1)) if documents else None
    mask = causal_mask(jnp.arange(T)[None], T, window, begins)

    def by_kernel(q, k, v):
        return fused_attention(q, k, v, begins, kernel, window, "float32")

    def by_einsum(q, k, v):
        return Compute().attention(q, k, v, mask)

    def with_gradients(function, q, k, v, dy):
        y, pull = jax.vjp(function, q, k, v)
        return y, *pull(dy)

    expected = jax.jit(with_gradients, static_argnums=0)(by_einsum, q, k, v, dy)
    with jax.set_mesh(make_mesh(mesh)) if mesh else nullcontext():
        found = jax.jit(with_gradients, static_argnums=0)(by_kernel, q, k, v, dy)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < FLOAT32_ROUNDING


@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_each_device_computes_its_own_rows_and_heads_and_sends_nothing(kernel, optimized):
    q, k, v = (jnp.zeros((B, n, T, C)) for n in (H, K, K))
    documents = jnp.zeros((B, T), jnp.int32)
    with jax.set_mesh(make_mesh("data:2,fsdp:2,tensor:2")):
        place = jax.sharding.PartitionSpec(("data", "fsdp"), "tensor")
        operands = [jax.device_put(x, place) for x in (q, k, v)]

        def loss(q, k, v):
            return fused_attention(q, k, v, documents, kernel, 50, "float32")

        program = jax.jit(loss).lower(*operands).compile().as_text()
    assert f"f32[1,{H // 2},{T},{C}]" in program or f"f32[1,{T},{H // 2},{C}]" in program
    for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert word not in program


@pytest.mark.parametrize(
    "kind, platform, expected",
    [
        (*CPU, "einsum"),
        (*V5E, "splash"),
        ("TPU v6 lite", "tpu", "splash"),
        (*H100, "cudnn"),
        ("NVIDIA GeForce RTX 4090", "gpu", "cudnn"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "gpu", "cudnn"),
        ("NVIDIA GeForce RTX 2080 Ti", "gpu", "einsum"),
        ("Tesla T4", "gpu", "einsum"),
        ("AMD Instinct MI300X", "gpu", "einsum"),
    ],
)
def test_the_fastest_depends_on_the_card(kind, platform, expected):
    with on(kind, platform):
        assert fastest_attention(1024, 64, "bfloat16") == expected


@pytest.mark.parametrize(
    "device, kernel, T, head_size, dtype, expected",
    [
        (H100, "cudnn", 1024, 64, "bfloat16", True),
        (H100, "cudnn", 1024, 64, "float32", False),
        (H100, "cudnn", 1024, 256, "bfloat16", False),
        (H100, "cudnn", 1024, 12, "bfloat16", False),
        (H100, "cudnn", 1023, 64, "bfloat16", False),
        (H100, "splash", 1024, 64, "bfloat16", False),
        (("Tesla T4", "gpu"), "cudnn", 1024, 64, "bfloat16", False),
        (V5E, "splash", 1024, 80, "float32", True),
        (V5E, "splash", 192, 64, "bfloat16", False),
    ],
)
def test_a_kernel_is_taken_where_device_shape_and_dtype_allow_it(
    device, kernel, T, head_size, dtype, expected
):
    options = Options(n_head=4, n_embd=4 * head_size, block_size=T, dtype=dtype)
    with on(*device):
        assert (model_config(options, 9).compute.kernel == kernel) == expected
        if expected:
            assert model_config(replace(options, attention=kernel), 9).compute.kernel == kernel
            said = refusal(model_config, replace(options, attention=kernel, dropout=0.1), 9)
            assert said.endswith("dropout; use attention=auto")
        else:
            said = refusal(model_config, replace(options, attention=kernel), 9)
            assert said.startswith(f"attention={kernel} does not suit the device")
