"""How a model is computed: what the options and the device decide. The model is the same everywhere."""

import os
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from common.devices import cpu_flags
from common.errors import UserError
from config.options import Options
from fast import TOKENS, How, faster, rounded  # no other file of the core names it
from model import GPT, GPTConfig
from parallel.mesh import device, memory


def choose_how(options: Options, config: GPTConfig) -> How:
    """Decide how to compute a model on the device. Raises UserError."""
    on_cpu = device().platform == "cpu"
    dtype = options.dtype
    if dtype == "auto":
        dtype = "bfloat16" if multiplies_bfloat16() else "float32"
    # XLA's CPU compiler merges recomputed operations with the first ones, unless a loop keeps them apart.
    unrolled = not 0 < options.unroll < options.n_layer
    loop = on_cpu and options.remat != "none" and unrolled
    return How(
        dtype=dtype,
        result="float32" if on_cpu else dtype,  # a CPU takes longer to round than to store
        kernel=choose_kernel(options, config, dtype),
        queries=64 if on_cpu else 0,  # fewer at once save nothing more, and compile longer
        unroll=1 if loop else options.unroll,
        remat=options.remat,
        max_logits=How.max_logits if on_cpu else memory() // (12 * 2),  # a twelfth, of two bytes each
    )


# The fastest attention that JAX has, by what JAX calls the device; the first pattern that fits counts.
FASTEST_ATTENTION = {
    # cuDNN's attention needs compute capability 8.0 (docs.nvidia.com/cudnn/operations/Attention), Ampere's.
    r"GTX|TITAN|Quadro|RTX 20[678]0|V100|\b[KMPT]\d": "einsum",
    # 0.8 to 2.3 times as fast as FlashAttention-2 (huggingface/transformers#48163, pytorch/pytorch#192799),
    # where attention in separate operations has a third of its speed or less (arXiv:2307.08691, 4.1).
    r"NVIDIA": "cudnn",
    # As in MaxText, Google's own trainer (AI-Hypercomputer/maxtext, layers/attention_op.py). By the plan of a
    # step of 12 x 1,024 tokens of GPT-2, a v5e then holds 7.0 GiB at its peak, and 12.7 with einsum.
    r"TPU": "splash",
}


def choose_kernel(options: Options, config: GPTConfig, dtype: str) -> str:
    kind, C = device().device_kind, config.head_size
    fits = (name for pattern, name in FASTEST_ATTENTION.items() if re.search(pattern, kind))
    fastest = next(fits, "einsum")
    # With deterministic=True, XLA fails to find the compiled kernel (JAX 0.11.2, H200): an IndexError.
    no_cudnn = dtype != "bfloat16" or C % 8 or C > 128 or options.deterministic
    if (fastest == "cudnn" and no_cudnn) or config.block_size % TOKENS[fastest]:
        fastest = "einsum"
    if options.attention == "auto":
        return fastest  # with dropout it serves evaluation alone
    if options.attention != "einsum" and (options.attention != fastest or options.dropout):
        raise UserError(
            f"attention={options.attention} does not suit the device, shape, dtype, dropout or "
            "deterministic; use attention=auto"
        )
    return options.attention


def multiplies_bfloat16() -> bool:
    """Tell whether the device multiplies bfloat16 faster than float32.

    Xeons since Sapphire Rapids and AMD's CPUs since Zen 4 do, unless ONEDNN_MAX_CPU_ISA forbids it.
    """
    if device().platform != "cpu":
        return True
    forbidden = "ONEDNN_MAX_CPU_ISA" in os.environ
    return not forbidden and re.search(r"\b(amx_bf16|avx512_bf16)\b", cpu_flags()) is not None


def for_inference(
    model: GPT, dtype: str = "auto", attention: str = "auto", deterministic: bool = False
) -> GPT:
    """Return a model that is done with training as the device computes it fastest, or as these say."""
    options = replace(Options(), dtype=dtype, attention=attention, deterministic=deterministic)
    return rounded(faster(model, choose_how(options, model.config)))


@jax.jit
def probe(model: GPT) -> Float[Array, ""]:
    """Compute the loss of a row of arbitrary tokens, the same on each device but for rounding."""
    # Multiples of a prime, modulo V, are all different tokens, unless they are more than V.
    row = jnp.arange(min(model.config.block_size, 32) + 1)[None] * 7919 % model.config.vocab_size
    return faster(model, How(unroll=1)).loss(row[:, :-1], row[:, 1:])
