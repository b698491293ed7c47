"""Attention in one kernel, which never holds the T x T weights: cuDNN's on NVIDIA GPUs, splash on TPUs.

Both are JAX's own, and compute what layers/attention.py computes with einsum.
"""

import math
import re
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from config.devices import FASTEST_ATTENTION
from layers.compute import current_mesh, device

# T has to be a multiple of this, for cuDNN's gradient with documents and for splash's blocks.
TOKENS = {"einsum": 1, "cudnn": 2, "splash": 128}


def fastest_attention(T: int, head_size: int, dtype: str) -> str:
    """Return the fastest implementation that the device has for these shapes and this dtype."""
    kind = device().device_kind
    name = next((name for pattern, name in FASTEST_ATTENTION.items() if re.search(pattern, kind)), "einsum")
    if name == "cudnn" and (dtype != "bfloat16" or head_size % 8 or head_size > 128):
        return "einsum"
    return name if T % TOKENS[name] == 0 else "einsum"


def fused_attention(
    q: Float[Array, "B H T C"],
    k: Float[Array, "B K T C"],
    v: Float[Array, "B K T C"],
    documents: Int[Array, "B T"] | None,
    kernel: str,
    window: int | None,
    dtype: str,
) -> Float[Array, "B H T C"]:
    """Compute softmax(q k^T / sqrt(C)) v under the mask of `causal_mask`.

    XLA cannot split a kernel over devices, so each device of a mesh computes its own rows and heads.
    """
    window = window if window and window < q.shape[2] else None
    attend = partial(cudnn_attention if kernel == "cudnn" else splash_attention, window=window)
    operands = (*(x.astype(dtype) for x in (q, k, v)), documents)
    mesh = current_mesh()
    if mesh.size == 1:
        return attend(*operands)
    axes = tuple(axis for axis in ("data", "fsdp") if axis not in mesh.manual_axes)
    rows, heads = P(axes), P(axes, "tensor")
    return jax.shard_map(
        attend,
        in_specs=(heads, heads, heads, rows),
        out_specs=heads,
        axis_names=set(mesh.shape) - set(mesh.manual_axes),
        check_vma=False,
    )(*operands)


def cudnn_attention(q, k, v, documents, window):
    """Compute one device's part with cuDNN; off a GPU, for tests, with XLA."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # (B, T, H, C)
    mask = None if documents is None else documents[:, None, :, None] == documents[:, None, None, :]
    y = jax.nn.dot_product_attention(
        *(q, k, v),
        mask=mask,
        is_causal=True,
        local_window_size=None if window is None else (window - 1, 0),  # keys before and after the query's
        implementation="cudnn" if device().platform == "gpu" else "xla",
    )
    return y.swapaxes(1, 2)


def splash_attention(q, k, v, documents, window):
    """Compute one device's part with splash; off a TPU, for tests, JAX interprets the kernel."""
    # Imported here, because it takes 0.2 s and only TPUs need it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    H, T, C = q.shape[1:]
    mask = masks.CausalMask((T, T)) if window is None else masks.LocalMask((T, T), (window - 1, 0), 0)
    block = next(size for size in (512, 256, 128) if T % size == 0)
    axes = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    blocks: Any = dict.fromkeys(axes, block)
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * H),
        block_sizes=splash.BlockSizes(**blocks),
        interpret=device().platform != "tpu",
    )
    segments = None if documents is None else splash.SegmentIds(documents, documents)
    return jax.vmap(kernel)(q / math.sqrt(C), k, v, segments)
