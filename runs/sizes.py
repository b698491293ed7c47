"""The FLOPs and the bytes of a model, counted from its shapes.

The checks are for a digit too many, at which JAX overflows, or the kernel kills the program.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from config.command_line import UserError
from config.options import Options
from model import GPTConfig
from parallel.sharding import is_matrix
from runs.hardware import host_bytes
from training.state import create_state

ANYWHERE = 10**16  # bytes: more than any cluster has, for plans of other machines


def flops_per_token(config: GPTConfig, T: int) -> int:
    """Return the FLOPs of matrix products per token of a training step on sequences of T tokens.

    A matrix of P parameters takes 6 P, a layer's attention 12 T D: like nanoGPT and PaLM (arXiv:2204.02311,
    appendix B), this counts the causal half that a good kernel skips, and for a window twice the keys that a
    token reads on average.
    """
    model = eqx.filter_eval_shape(config.build, jax.random.key(0))
    arrays = jax.tree.leaves_with_path(model)
    blocks = sum(x.size for path, x in arrays if path[0].name == "blocks" and is_matrix(path, x))
    matrices = blocks + config.vocab_size * config.n_embd
    N = min(config.window or T, T)
    return 6 * matrices + 12 * config.n_layer * (2 * N - N * N // T) * config.n_embd


def check_training(config: GPTConfig, options: Options, planned: bool = False) -> None:
    """Raise UserError for a state and a batch that cannot fit here, or if `planned`, anywhere."""
    shape = ("gradient_accumulation_steps", "batch_size", "block_size")
    sizes = {name: getattr(options, name) for name in (*shape, "n_layer", "n_embd")}
    arrays = jax.tree.leaves(eqx.filter_eval_shape(create_state, config, options))
    needed = sum(x.size * x.dtype.itemsize for x in arrays) + 8 * math.prod(sizes[name] for name in shape)
    named = ", ".join(f"{name}={n}" for name, n in (sizes | {"vocab_size": config.vocab_size}).items())
    check(f"the state and a batch of {named}", needed, ANYWHERE if planned else None)


def check_cache(config: GPTConfig, rows: int, option: str) -> None:
    numbers = 2 * config.n_layer * config.kv_heads * config.head_size * config.block_size * rows
    check(f"the key/value cache of {option}", numbers * jnp.dtype(config.compute.result).itemsize)


def check_evaluation(config: GPTConfig, B: int, T: int) -> None:
    check(f"the residual stream of batch_size={B}", 2 * B * T * config.n_embd)


def check(what: str, needed: int, there: float | None = None) -> None:
    """Raise UserError where more bytes are needed than are `there`, in the mesh's devices unless given."""
    if there is None and jax.default_backend() == "cpu":
        there = host_bytes() * jax.process_count()
    elif there is None:
        stats = jax.local_devices()[0].memory_stats() or {}
        there = stats.get("bytes_limit", math.inf) * max(1, jax.sharding.get_mesh().size)
    if needed > there:
        least, most = (f"{x // 10**7 / 100:,.2f} GB" for x in (needed, there))
        raise UserError(f"{what} takes at least {least}, and there are {most}: make it smaller")
