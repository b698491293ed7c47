"""The parameters and the FLOPs of a model, counted from its shapes."""

import equinox as eqx
import jax

from model import GPTConfig
from training.optimizer import is_matrix


def count_parameters(config: GPTConfig) -> int:
    model = eqx.filter_eval_shape(config.build, jax.random.key(0))
    return sum(x.size for x in jax.tree.leaves(model))


def flops_per_token(config: GPTConfig, T: int) -> int:
    """Return the FLOPs of matrix products per token of a training step on sequences of T tokens.

    A matrix of P parameters takes 6 P, a layer's attention 12 T H C: like nanoGPT and PaLM (arXiv:2204.02311,
    appendix B), this counts the causal half that a good kernel skips, and for a window twice the keys that a
    token reads on average.
    """
    model = eqx.filter_eval_shape(config.build, jax.random.key(0))
    arrays = jax.tree.leaves_with_path(model)
    blocks = sum(x.size for path, x in arrays if path[0].name == "blocks" and is_matrix(path, x))
    matrices = blocks + config.vocab_size * config.n_embd
    N = min(config.window or T, T)
    return 6 * matrices + 12 * config.n_layer * (2 * N - N * N // T) * config.n_head * config.head_size
