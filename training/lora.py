"""LoRA: a trained model learns on through small matrices beside its weights, which stay as they are.

    y = x W + b + (alpha / r) (x A) B         A (in, r) is random at first, B (r, out) zero; r is small

after arXiv:2106.09685. A and B are all that a run trains: gradients, the optimizer's moments and checkpoints
are theirs alone. `add_adapters` puts them into any GPT: a layer becomes a `LoRALinear`, so that whatever
computes with a model does so with an adapted one. `merge` gives the ordinary model that computes the same.

Training never forms W + A B. The gradients of A and B would come from that of the sum, which takes as long as
to train W: for GPT-2 124M with adapters of rank 16, a batch of 4 x 128 and 2 CPU cores, loss and gradients
took 2.60 s in that way, 2.06 s as above, and 2.73 s where all weights were trained.
"""

import hashlib
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, PRNGKeyArray, UInt

from config.command_line import UserError
from config.options import Options
from layers.products import Linear, linear
from model import GPT
from parallel.sharding import is_matrix, leaf_name

KNUTH = np.uint32(2654435761)  # of his multiplicative hash, which spreads consecutive integers over 32 bits


class LoRALinear(Linear):
    """A `Linear` with an adapter beside it. The arrays of the layer keep their names."""

    lora_a: Float[Array, "i r"]
    lora_b: Float[Array, "r *o"]
    scale: float = eqx.field(static=True)  # alpha / r

    def __init__(self, layer: Linear, options: Options, key: PRNGKeyArray):
        """Make all L layers at once. A is drawn as in the paper's code and in PEFT: var(x A) = var(x) / 3."""
        self.weight, self.bias, self.compute = layer.weight, layer.bias, layer.compute
        (L, fan_in, *fan_out), r = layer.weight.shape, options.lora_rank
        limit = 1 / math.sqrt(fan_in)
        self.lora_a = jax.random.uniform(key, (L, fan_in, r), minval=-limit, maxval=limit)
        self.lora_b = jnp.zeros((L, r, *fan_out))
        self.scale = options.lora_alpha / r

    def __call__(self, x: Float[Array, "B T i"]) -> Float[Array, "B T *o"]:
        within = self.scale * linear(x, self.lora_a, self.compute)  # (B, T, r)
        return super().__call__(x) + linear(within, self.lora_b, self.compute)

    def scale_inputs(self, g: Float[Array, " i"]) -> "LoRALinear":
        return eqx.tree_at(lambda layer: layer.lora_a, super().scale_inputs(g), g[:, None] * self.lora_a)

    def tensor_specs(self) -> "LoRALinear":
        below = [P(None, "tensor")] if self.bias is None else [P(None, "tensor"), P("tensor")]
        return jax.tree.unflatten(jax.tree.structure(self), [*below, P(), P(None, "tensor")])


def add_adapters(model: GPT, options: Options, key: PRNGKeyArray) -> GPT:
    """Put an adapter of rank `lora_rank` beside each linear layer that `lora_targets` names.

    The model computes what it did, to the bit, while B is zero. Its matrices are stored in `lora_base_dtype`.
    Raises UserError for a name there that no layer has, and for too high a rank.
    """
    model = jax.tree_util.tree_map_with_path(
        lambda path, x: x.astype(options.lora_base_dtype) if is_matrix(path, x) else x, model
    )
    layers = {
        leaf_name(path): layer
        for path, layer in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_linear)
        if is_linear(layer)
    }
    keys = dict(zip(layers, jax.random.split(key, len(layers)), strict=True))
    chosen = chosen_layers(options.lora_targets, layers)
    for name in chosen:
        _, fan_in, *fan_out = layers[name].weight.shape
        if options.lora_rank > min(fan_in, math.prod(fan_out)):
            raise UserError(
                f"lora_rank={options.lora_rank} is more than the rank of {name}, which is "
                f"{min(fan_in, math.prod(fan_out))} at most: give less, or leave it out of lora_targets"
            )

    def adapt(path, x):
        name = leaf_name(path)
        return LoRALinear(x, options, keys[name]) if name in chosen else x

    return jax.tree_util.tree_map_with_path(adapt, model, is_leaf=is_linear)


def chosen_layers(text: str, layers: dict[str, Linear]) -> list[str]:
    """Return the layers that `lora_targets=<text>` means: "all", or those whose names end with one given.

    So c_proj, mlp.c_proj and blocks.mlp.c_proj all mean the MLP's last layer. Raises UserError.
    """
    if text == "all":
        return [name for name, layer in layers.items() if layer.matrix]
    chosen = set()
    for given in text.split(","):
        found = {name for name in layers if f".{name}".endswith(f".{given.strip()}")}
        if not found:
            raise UserError(
                f"lora_targets={text}: no layer is called {given.strip()!r}; give some of "
                f"{', '.join(name.removeprefix('blocks.') for name in layers)}, or their last parts"
            )
        chosen |= found
    return [name for name in layers if name in chosen]


def is_linear(x) -> bool:
    return isinstance(x, Linear)


def partition_trainable(model: GPT) -> tuple[GPT, GPT]:
    """Split a model into (trainable, frozen): (adapters, base) with LoRA, else (everything, nothing).

    Both have the model's structure, with None for what the other has; `eqx.combine` joins them again.
    """
    return eqx.partition(model, trainable(model))


def trainable(model: GPT):
    """Return a filter for `eqx.partition`: what a run trains of a model, which is all without adapters."""
    adapters = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].name.startswith("lora_"), model)
    return adapters if any(jax.tree.leaves(adapters)) else True


def without_adapters(model: GPT) -> GPT:
    """Return the ordinary model below the adapters, or its shapes, given those of an adapted one."""

    def below(x):
        return (x.weight, x.bias) if is_linear(x) else x  # the leaves of a Linear, in order

    ordinary = eqx.filter_eval_shape(model.config.build, jax.random.key(0))
    leaves = jax.tree.leaves(jax.tree.map(below, model, is_leaf=is_linear))
    return jax.tree.unflatten(jax.tree.structure(ordinary), leaves)


def merge(model: GPT) -> GPT:
    """Return the ordinary model, in float32, that computes what an adapted one does, to float32 rounding."""

    def merged(x):
        if not isinstance(x, LoRALinear):
            return x
        change = jnp.einsum("lir,lr...->li...", x.lora_a, x.lora_b)
        return eqx.tree_at(lambda x: x.weight, x, x.weight.astype(jnp.float32) + x.scale * change)

    model = without_adapters(jax.tree.map(merged, model, is_leaf=is_linear))
    return jax.tree.map(lambda x: x.astype(jnp.float32), model)


def fingerprint(model: GPT) -> str:
    """Hash a model's weights, so that adapters are not put beside those of another model.

    The hash is the same on every mesh, without gathering the weights, and for either `lora_base_dtype`: for
    each array it sums integers, which no order of summing changes, made of the elements in bfloat16.
    """
    sums = eqx.filter_jit(lambda model: jax.tree.map(checksum, model))(model)
    named = {leaf_name(path): int(x) for path, x in jax.tree_util.tree_leaves_with_path(sums)}
    return hashlib.sha256(repr(sorted(named.items())).encode()).hexdigest()


def checksum(x: Float[Array, "..."]) -> UInt[Array, ""]:
    """Sum the elements' bits, weighted by their places, modulo 2^32."""
    bits = lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * size + lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return jnp.sum(bits * (place * KNUTH | 1), dtype=jnp.uint32)
