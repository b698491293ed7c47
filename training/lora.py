"""LoRA (arXiv:2106.09685): a model learns on through small matrices beside its weights, which stay fixed.

    y = x W + b + (alpha / r) (x A) B         A (in, r) is random at first, B (r, out) zero; r is small

Gradients, moments and checkpoints are of A and B alone. Training never forms W + A B, whose gradient costs
as much as training W.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from config.command_line import UserError
from config.options import Options
from model import GPT, Linear, is_linear, leaf_name


class LoRALinear(eqx.Module):
    """A `Linear` with an adapter beside it."""

    wrapped: Linear
    lora_a: Float[Array, "i r"]
    lora_b: Float[Array, "r *o"]
    scale: float = eqx.field(static=True)  # alpha / r

    def __init__(self, layer: Linear, options: Options, key: PRNGKeyArray):
        """Make all L layers at once. A is drawn as in the paper's code and in PEFT: var(x A) = var(x) / 3."""
        (L, fan_in, *fan_out), r = layer.weight.shape, options.lora_rank
        limit = 1 / math.sqrt(fan_in)
        self.wrapped = layer
        self.lora_a = jax.random.uniform(key, (L, fan_in, r), minval=-limit, maxval=limit)
        self.lora_b = jnp.zeros((L, r, *fan_out))
        self.scale = options.lora_alpha / r

    def __call__(self, x: Float[Array, "B T i"]) -> Float[Array, "B T *o"]:
        linear = self.wrapped.compute.linear
        within = self.scale * linear(x, self.lora_a)  # (B, T, r)
        return self.wrapped(x) + linear(within, self.lora_b)


def add_adapters(model: GPT, options: Options, key: PRNGKeyArray) -> GPT:
    """Put an adapter beside each linear layer that `lora_targets` names. Raises UserError."""
    leaves = jax.tree.leaves_with_path(model, is_leaf=is_linear)
    layers = {leaf_name(path): layer for path, layer in leaves if is_linear(layer)}
    keys = dict(zip(layers, jax.random.split(key, len(layers)), strict=True))
    chosen = chosen_layers(options.lora_targets, layers)

    def adapt(path, x):
        name = leaf_name(path)
        return LoRALinear(x, options, keys[name]) if name in chosen else x

    return jax.tree.map_with_path(adapt, model, is_leaf=is_linear)


def chosen_layers(text: str, layers: dict[str, Linear]) -> set[str]:
    """Return the layers whose names end with one given, as in mlp.c_proj, or "all". Raises UserError."""
    if text == "all":
        return set(layers)
    chosen = set()
    for given in text.split(","):
        found = {name for name in layers if f".{name}".endswith(f".{given.strip()}")}
        if not found:
            raise UserError(
                f"lora_targets={text}: no layer is called {given.strip()!r}; give some of "
                f"{', '.join(name.removeprefix('blocks.') for name in layers)}, or their last parts"
            )
        chosen |= found
    return chosen


def partition_trainable(model: GPT) -> tuple[GPT, GPT]:
    """Split a model into (adapters, base), or without adapters into (everything, nothing)."""
    adapters = jax.tree.map_with_path(lambda path, _: path[-1].name.startswith("lora_"), model)
    return eqx.partition(model, adapters if any(jax.tree.leaves(adapters)) else True)


def without_adapters(model: GPT) -> GPT:
    """Return the base model of an adapted one, or of its shapes."""
    return replace_adapted(lambda layer: layer.wrapped, model)


def merge(model: GPT) -> GPT:
    """Return the ordinary float32 model that computes what an adapted one does, to rounding."""

    def merged(x):
        change = jnp.einsum("lir,lr...->li...", x.lora_a, x.lora_b)
        weight = x.wrapped.weight.astype(jnp.float32) + x.scale * change
        return eqx.tree_at(lambda layer: layer.weight, x.wrapped, weight)

    return jax.tree.map(lambda x: x.astype(jnp.float32), replace_adapted(merged, model))


def replace_adapted(replace: Callable[[LoRALinear], Linear], model: GPT) -> GPT:
    def is_adapted(x):
        return isinstance(x, LoRALinear)

    return jax.tree.map(lambda x: replace(x) if is_adapted(x) else x, model, is_leaf=is_adapted)
