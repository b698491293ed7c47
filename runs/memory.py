"""Refuse what cannot fit: compare the least memory that a program needs with what devices and host have.

The bounds are low on purpose: nothing that could run is refused. They are for sizes with too many digits,
at which JAX overflows, or the kernel kills the program after a long wait and without a reason.
"""

import math
import os
from decimal import Decimal

import jax

from config.command_line import UserError
from config.options import Options
from model import GPTConfig

ANYWHERE = 10**16  # bytes: more than any cluster's devices have. A plan is made for machines elsewhere


def check_training(config: GPTConfig, options: Options, planned: bool = False) -> None:
    """Raise UserError for a run whose state or batch cannot fit here; if it is only `planned`, anywhere."""
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    check(
        f"the state of n_layer={config.n_layer}, n_embd={config.n_embd}, block_size={config.block_size}, "
        f"vocab_size={config.vocab_size}",
        state_bytes(config, options),
        ANYWHERE if planned else device_bytes(),
    )
    check(
        f"the batch of gradient_accumulation_steps={A}, batch_size={B}, block_size={T}",
        8 * A * B * T // jax.process_count(),  # inputs and targets, int32
        ANYWHERE if planned else host_bytes(),
    )


def check_sampling(config: GPTConfig, num_samples: int, max_new_tokens: int) -> None:
    """Raise UserError for samples whose key/value cache or tokens cannot fit."""
    check_cache(config, num_samples, f"num_samples={num_samples}")
    check(  # all samples but the first are kept to the end
        f"the tokens of num_samples={num_samples}, max_new_tokens={max_new_tokens}",
        4 * (num_samples - 1) * max_new_tokens,
        host_bytes(),
    )


def check_cache(config: GPTConfig, rows: int, option: str) -> None:
    """Raise UserError, which names the option, for rows of the key/value cache that cannot fit."""
    per_token = 2 * config.n_layer * config.kv_heads * config.head_size  # keys and values
    per_number = 2 if config.compute.dtype == "bfloat16" else 4
    needed = rows * config.block_size * per_token * per_number
    check(f"the key/value cache of {option}", needed, device_bytes())


def check_evaluation(config: GPTConfig, B: int, T: int) -> None:
    """Raise UserError for a batch whose tokens cannot fit, or the residual stream of its (B, T) tokens."""
    check(f"the residual stream of batch_size={B}", 2 * B * T * config.n_embd, device_bytes())
    check(f"the batch of batch_size={B}", 8 * B * T // jax.process_count(), host_bytes())


def check(what: str, needed: int, there: float) -> None:
    if needed > there:
        raise UserError(
            f"{what} takes at least {gigabytes(needed)}, and there are {gigabytes(there)}: make it smaller"
        )


def gigabytes(number: float) -> str:
    return f"{Decimal(number) / 10**9:.3g} GB"  # a float could not hold the largest


def state_bytes(config: GPTConfig, options: Options) -> int:
    """Return the bytes of the model's matrices and embeddings, and of their moments."""
    moments = 2 if options.optimizer == "adamw" else 1
    per_weight = 4 * (1 + moments)
    if options.lora_rank:  # the adapters alone have moments
        per_weight = 2 if options.lora_base_dtype == "bfloat16" else 4
    D, kv_width = config.n_embd, config.kv_heads * config.head_size
    block = 2 * D * D + 2 * D * kv_width + (3 if config.mlp == "swiglu" else 2) * D * config.hidden
    tokens = config.vocab_size * (1 if config.tie_embeddings else 2)
    positions = config.block_size if config.position == "learned" else 0
    return per_weight * (config.n_layer * block + D * (tokens + positions))


def device_bytes() -> float:
    """Return the bytes of memory that the mesh's devices have together; infinite where they do not tell."""
    if jax.default_backend() == "cpu":
        return host_bytes() * jax.process_count()
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", math.inf) * max(1, jax.sharding.get_mesh().size)


def host_bytes() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
