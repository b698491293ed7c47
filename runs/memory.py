"""Refuse what cannot fit: compare the least memory that a program needs with what devices and host have.

The bounds are low on purpose: nothing that could run is refused. They are for sizes with too many digits,
at which JAX overflows, or the kernel kills the program after a long wait and without a reason.
"""

import math
from decimal import Decimal

import equinox as eqx
import jax
import jax.numpy as jnp

from config.command_line import UserError
from config.options import Options
from model import GPTConfig
from runs.hardware import host_bytes
from training.state import create_state

ANYWHERE = 10**16  # bytes: more than any cluster's devices have. A plan is made for machines elsewhere


def check_training(config: GPTConfig, options: Options, planned: bool = False) -> None:
    """Raise UserError for a run whose state or batch cannot fit here; if it is only `planned`, anywhere."""
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    state = jax.tree.leaves(eqx.filter_eval_shape(create_state, config, options))
    check(
        f"the state of n_layer={config.n_layer}, n_embd={config.n_embd}, block_size={config.block_size}, "
        f"vocab_size={config.vocab_size}",
        sum(x.size * x.dtype.itemsize for x in state),
        ANYWHERE if planned else device_bytes(),
    )
    check_batch(f"gradient_accumulation_steps={A}, batch_size={B}, block_size={T}", A * B * T, planned)


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
    numbers = 2 * config.n_layer * config.kv_heads * config.head_size * config.block_size * rows
    check(
        f"the key/value cache of {option}",
        numbers * jnp.dtype(config.compute.result).itemsize,
        device_bytes(),
    )


def check_evaluation(config: GPTConfig, B: int, T: int) -> None:
    """Raise UserError for a batch whose tokens cannot fit, or the residual stream of its (B, T) tokens."""
    check(f"the residual stream of batch_size={B}", 2 * B * T * config.n_embd, device_bytes())
    check_batch(f"batch_size={B}", B * T)


def check_batch(options: str, tokens: int, planned: bool = False) -> None:
    needed = 8 * tokens // jax.process_count()  # inputs and targets, int32
    check(f"the batch of {options}", needed, ANYWHERE if planned else host_bytes())


def check(what: str, needed: int, there: float) -> None:
    if needed > there:
        least, most = (f"{Decimal(x) / 10**9:.3g} GB" for x in (needed, there))  # too large for a float
        raise UserError(f"{what} takes at least {least}, and there are {most}: make it smaller")


def device_bytes() -> float:
    """Return the bytes of memory that the mesh's devices have together; infinite where they do not tell."""
    if jax.default_backend() == "cpu":
        return host_bytes() * jax.process_count()
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", math.inf) * max(1, jax.sharding.get_mesh().size)
