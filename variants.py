"""Ideas beyond GPT-2 and Llama. Each puts a wrapper around a layer of a plain model, or changes its weights.

A wrapper is a module that calls the layer it holds in `wrapped`, a field that `leaf_name` leaves out: the
layer's arrays keep their names.

To add one: a class here, a flag in `VariantConfig` and in config/options.py, a line in its `build`, and,
for arrays of its own, a row of the table in parallel/mesh.py. A plain run does not import this file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from model import GPT, GPTConfig, Linear, Norm


@dataclass(frozen=True)
class VariantConfig(GPTConfig):
    """A GPTConfig with the flags of the ideas below."""

    mup_base_width: int = 0  # n_embd of the model whose learning rates were tuned; 0: no µP
    mup_base_n_head: int = 0  # n_head of that model; 0: as many as this one has

    def __post_init__(self):
        super().__post_init__()
        base_n_head = self.mup_base_n_head or self.n_head
        if self.mup_base_width and self.head_dim:
            raise ValueError("head_dim must be left out with µP, which derives a head's width from n_embd")
        if self.mup_base_width % base_n_head or (self.mup_base_n_head and not self.mup_base_width):
            raise ValueError(
                f"mup_base_width={self.mup_base_width} must be the n_embd of a model "
                f"with {base_n_head} heads (mup_base_n_head)"
            )

    def build(self, key: PRNGKeyArray) -> GPT:
        model = GPT(self, key=key)
        return model if multipliers(self) == (1, 1) else mup(model, self)


# µP, the maximal update parametrisation (arXiv:2203.03466, table 8): learning rates tuned at one width suit
# all. For a model n times as wide as its base, with heads r times as wide:
#
#     hidden matrices at the start               divided by sqrt(n)                              mup
#     queries                                    divided by sqrt(r): scores are q k^T / C        Scaled
#     features, the head's input                 divided by n                                    Scaled
#     learning rate of hidden matrices           divided by n; with Muon, by sqrt(n), and by     mup_rates
#                                                n / sqrt(r) for queries, keys and values
#     embeddings, head, and all other rates      the base's
#
# Weight decay is multiplied by a matrix's own rate.


class Scaled(eqx.Module):
    """A layer whose result is divided by a constant."""

    wrapped: Linear | Norm
    divisor: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.wrapped(x) / self.divisor


def is_scaled(x) -> bool:
    return isinstance(x, Scaled)


def without_multipliers(model: GPT) -> GPT:
    """Return the plain model that computes the same as one in µP."""

    def divided(x):
        return jax.tree.map(lambda w: w / x.divisor, x.wrapped) if is_scaled(x) else x

    return jax.tree.map(divided, model, is_leaf=is_scaled)


def multipliers(config) -> tuple[float, float]:
    """Return n and r of a config or options: how much wider the model, and a head, are than the base's."""
    n = config.n_embd / config.mup_base_width if config.mup_base_width else 1.0
    return n, n * (config.mup_base_n_head or config.n_head) / config.n_head


def mup(model: GPT, config: VariantConfig) -> GPT:
    n, r = multipliers(config)

    def layers(model):
        attn = model.blocks.attn
        return [attn.c_q if attn.q_norm is None else attn.q_norm, model.ln_f]

    scaled = [Scaled(x, d) if d != 1 else x for x, d in zip(layers(model), (math.sqrt(r), n), strict=True)]
    model = eqx.tree_at(layers, model, scaled)
    return eqx.tree_at(linear_weights, model, replace_fn=lambda w: w / math.sqrt(n))


def linear_weights(model: GPT) -> list:
    layers = jax.tree.leaves(model.blocks, is_leaf=lambda x: isinstance(x, Linear))
    return [layer.weight for layer in layers if isinstance(layer, Linear)]


def mup_rates(options, is_block_matrix: Callable[..., bool]) -> optax.GradientTransformation:
    """Scale the updates of the matrices in the blocks, which are known by path and array.

    The spectral norm of Muon's step should be proportional to sqrt(out / in) (arXiv:2310.17813). Scaled to
    Adam's RMS, it grows with sqrt(in). So the rate is divided by n and multiplied by the root of the outputs'
    growth. An adapter's B, whose inputs are as many at each width, keeps its rate.
    """
    n, r = multipliers(options)

    def scale(path, x):
        if path[-1].name == "lora_b" or not is_block_matrix(path, x):
            return x
        weight = path[-1].name == "weight"  # and not an adapter's A
        outputs = r if x.ndim == 4 else n  # Muon's matrix in (L, in, heads, C) is a head's
        return x / (n / math.sqrt(outputs) if weight and options.optimizer == "muon" else n)

    return optax.stateless(lambda updates, _: jax.tree.map_with_path(scale, updates))
