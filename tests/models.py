"""A small model whose weights are large, and how it is computed with: for the tests of the network."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from layers.compute import Compute
from model import GPT, GPTConfig
from variants import VariantConfig

TINY = GPTConfig(block_size=16, vocab_size=65, n_layer=2, n_head=4, n_embd=32)


def changed(config: GPTConfig, **changes) -> GPTConfig:
    """Return a config with other fields: its own, those of its `compute`, or those of ideas."""
    compute = {name: changes.pop(name) for name in Compute.__dataclass_fields__ if name in changes}
    cls = type(config) if changes.keys() <= vars(config).keys() else VariantConfig
    return cls(**vars(config) | changes | {"compute": replace(config.compute, **compute)})


def large(config: GPTConfig) -> GPT:
    """Return a model with random weights ten times those of a new one: attention is sharp, logits spread."""
    random = np.random.default_rng(0)

    def fill(path, leaf):
        gain = ".ln_" in jax.tree_util.keystr(path) and path[-1].name == "weight"
        return jnp.asarray(gain + 0.2 * random.normal(size=leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, eqx.filter_eval_shape(config.build, jax.random.key(0)))


def random_tokens(config: GPTConfig, B: int = 2, T: int | None = None, seed: int = 0) -> jax.Array:
    """Draw tokens, (B, T) int32; without T, as many as the model can read."""
    shape = (B, T or config.block_size)
    return jax.random.randint(jax.random.key(seed), shape, 0, config.vocab_size)


@jax.jit
def forward(model, tokens, key=None):
    """Compute logits, compiled."""
    return model(tokens, key=key)


def nll(logits, targets):
    """Compute the loss of each position, (B, T)."""
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]


@jax.jit
def train(model, tokens, targets, key=None):
    """Compute ((mean loss, logits), gradients), with the logits all at once."""

    def loss(model):
        logits = model(tokens, key=key)
        return nll(logits, targets).mean(), logits

    return jax.value_and_grad(loss, has_aux=True)(model)
