"""Attention in one kernel, which never holds the T x T weights: cuDNN's on NVIDIA GPUs, splash on TPUs.

    fused_attention(q, k, v, documents, "splash", window=None, dtype="bfloat16")

computes what layers/attention.py computes with einsum. Both kernels are JAX's own:
`jax.nn.dot_product_attention` calls cuDNN, and splash attention is written in Pallas. To XLA a kernel is one
operation, which it could not split over devices; so each device computes the rows and heads that it has.
"""

import math
import re
from functools import partial

import jax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from config.devices import FASTEST_ATTENTION
from layers.compute import device, here

RUNS_ON = {"cudnn": "an NVIDIA GPU, Ampere or later,", "splash": "a TPU"}
# The number of tokens has to be a multiple of this: for cuDNN's gradient with documents, and splash's blocks.
TOKENS = {"cudnn": 2, "splash": 128}


def fastest_attention() -> str:
    """Return the implementation that is the fastest on the device, if shapes and dtype allow it."""
    kind = device().device_kind
    return next((name for pattern, name in FASTEST_ATTENTION.items() if re.search(pattern, kind)), "einsum")


def missing(kernel: str, T: int, head_size: int, dtype: str) -> str | None:
    """Say what `kernel` needs and has not got for T tokens on the device; None if it can be used."""
    if kernel == "einsum":
        return None
    if fastest_attention() != kernel or kernel == "cudnn" and dtype != "bfloat16":
        return RUNS_ON[kernel] + (" and dtype=bfloat16" if kernel == "cudnn" else "")
    if kernel == "cudnn" and (head_size % 8 or head_size > 128):
        return f"a head size (n_embd / n_head) of at most 128 that is a multiple of 8, and it is {head_size}"
    if T % TOKENS[kernel]:
        return f"a block_size that is a multiple of {TOKENS[kernel]}, and it is {T}"
    return None


def fits(kernel: str, T: int) -> bool:
    """Return whether there is a kernel, and it takes T tokens."""
    return kernel in TOKENS and T % TOKENS[kernel] == 0


def fused_attention(
    q: Float[Array, "B H T C"],
    k: Float[Array, "B K T C"],
    v: Float[Array, "B K T C"],
    documents: Int[Array, "B T"] | None,
    kernel: str,
    window: int | None,
    dtype: str,
) -> Float[Array, "B H T C"]:
    """Compute softmax(q k^T / sqrt(C)) v, where queries read what `causal_mask` lets them read.

    On a mesh, `data` and `fsdp` split the rows, and `tensor` the heads.
    """
    window = window if window and window < q.shape[2] else None
    attend = partial(cudnn_attention if kernel == "cudnn" else splash_attention, window=window)
    operands = (*(x.astype(dtype) for x in (q, k, v)), documents)
    place = here()
    if not place.on_mesh:
        return attend(*operands)
    rows, heads = P(place.rows), P(place.rows, "tensor")
    return jax.shard_map(
        attend,
        in_specs=(heads, heads, heads, rows),
        out_specs=heads,
        axis_names=set(place.sizes) - set(place.manual),  # those are split already
        check_vma=False,
    )(*operands)


def cudnn_attention(q, k, v, documents, window):
    """Do as `fused_attention` on one device, with cuDNN. Off a GPU JAX computes the same, for tests."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # (B, T, H, C), as it asks
    # cuDNN takes a mask as numbers to add to the scores, as large as the scores of one head: (B, 1, T, T).
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
    """Do as `fused_attention` on one device, with splash. Off a TPU JAX interprets the kernel, for tests."""
    # Here, because it takes 0.2 s, and only TPUs need it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    H, T, C = q.shape[1:]
    mask = masks.CausalMask((T, T)) if window is None else masks.LocalMask((T, T), (window - 1, 0), 0)
    block = next(size for size in (512, 256, 128) if T % size == 0)  # MaxText's 512 where it can be
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * H),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=device().platform != "tpu",
    )
    segments = None if documents is None else splash.SegmentIds(documents, documents)
    return jax.vmap(kernel)(q / math.sqrt(C), k, v, segments)
