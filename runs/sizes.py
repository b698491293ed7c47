"""The FLOPs and the bytes of a model, counted from its shapes.

The check is for a digit too many, at which JAX overflows, or the kernel kills the program.
"""

import math

import equinox as eqx
import jax

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
    """Raise UserError where a state and a batch cannot fit here, or if `planned`, anywhere."""
    names = ("gradient_accumulation_steps", "batch_size", "block_size", "n_layer", "n_embd")
    sizes = {name: getattr(options, name) for name in names}
    arrays = jax.tree.leaves(eqx.filter_eval_shape(create_state, config, options))
    batch = 8 * options.gradient_accumulation_steps * options.batch_size * options.block_size
    needed = sum(x.size * x.dtype.itemsize for x in arrays) + batch
    there = ANYWHERE if planned else memory_of_mesh()
    if needed > there:
        named = ", ".join(f"{name}={n}" for name, n in (sizes | {"vocab_size": config.vocab_size}).items())
        least, most = (f"{x // 10**7 / 100:,.2f} GB" for x in (needed, there))
        raise UserError(
            f"the state and a batch of {named} takes at least {least}, and there are {most}: make it smaller"
        )


def memory_of_mesh() -> float:
    """Return the bytes of the mesh's devices; infinite where unknown."""
    if jax.default_backend() == "cpu":
        return host_bytes() * jax.process_count()
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", math.inf) * max(1, jax.sharding.get_mesh().size)
