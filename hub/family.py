"""What a family of models is in Hugging Face's format: one description, read in both directions.

gpt2.py and llama.py each have a `Family`. weights.py reads checkpoints with it, and export.py writes them. In
the table of tensors each array of ours has a pattern of einops, from their axes to ours, and their names:

    "blocks.mlp.c_fc.weight": ("f d -> d 1 f", "model.layers.{i}.mlp.gate_proj.weight",
                                               "model.layers.{i}.mlp.up_proj.weight"),

so each layer i has two matrices (F, D), which are transposed and joined to our (D, 2, F). Where ours is of
several of theirs, they are joined along the last axis but one. `k` and `c` stand for K and C.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
from einops import rearrange

from config.options import UserError
from model import GPT, GPTConfig, dotted


@dataclass(frozen=True)
class Family:
    """A family of models: its `config.json` and its tensors, next to ours."""

    model_type: str  # in config.json
    architecture: str  # the class of transformers
    prefix: str  # of all tensors but the head's; checkpoints of the model without a head leave it out
    tensors: dict[str, tuple[str, ...]]  # our array: the pattern, and their tensors
    not_weights: str  # a regular expression: tensors that some checkpoints hold, and that are no weights
    read_config: Callable[[dict[str, Any]], GPTConfig]  # of config.json; raises ValueError
    write_config: Callable[[GPTConfig], dict[str, Any]]  # the reverse, for a model that `needs` allows
    needs: Callable[[GPTConfig], dict[str, Any]]  # what must be so in a model for it to be of this family

    def obstacles(self, config: GPTConfig) -> list[str]:
        """The options that keep a model from being of this family, each with what it would have to be."""
        ours = vars(config) | {"n_kv_head": config.kv_heads, "n_hidden": config.hidden}
        return [
            f"{name}={ours[name]}, not {value}"
            for name, value in self.needs(config).items()
            if ours[name] != value
        ]


class Entry(NamedTuple):
    """An array of ours, and the tensors that it, or each layer of it, is made of."""

    name: str  # ours, as in blocks.attn.c_attn.weight
    layers: int | None  # None: it is not in a block
    pattern: str
    tensors: dict[str, tuple[int, ...]]  # their names, {i} for the layer, and their shapes

    def names(self, i: int | None = None) -> list[str]:
        """Their names, those of layer i."""
        return [name.format(i=i) for name in self.tensors]


def entries(family: Family, config: GPTConfig) -> dict[str, Entry]:
    """All arrays of a model, by our names, in the order of its leaves."""
    shapes = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
    found = {}
    for path, ours in jax.tree.leaves_with_path(shapes):
        name = dotted(path)
        pattern, *names = family.tensors[name]
        layers = config.n_layer if name.startswith("blocks.") else None
        one = jax.ShapeDtypeStruct(ours.shape[1:] if layers else ours.shape, ours.dtype)
        split = jax.eval_shape(partial(to_theirs, pattern=pattern, n=len(names)), one)
        found[name] = Entry(name, layers, pattern, dict(zip(names, (x.shape for x in split), strict=True)))
    return found


def to_ours(tensor, pattern: str, config: GPTConfig):
    """One of their tensors in our layout: a part of our array, or all of it."""
    sizes = {"k": config.kv_heads, "c": config.head_size} if "k" in pattern else {}
    return rearrange(tensor, pattern, **sizes)


def to_theirs(array, pattern: str, n: int) -> list:
    """The n tensors of theirs that our array is made of; `to_ours` undone."""
    theirs, ours = pattern.split(" -> ")
    parts = [array]
    if n > 1:  # a key's queries, the key and the value, or the gate and what it gates: 1 each after the first
        size = array.shape[-2]
        parts = [
            array[..., : size - n + 1, :],
            *(array[..., i : i + 1, :] for i in range(size - n + 1, size)),
        ]
    return [rearrange(part, f"{ours} -> {theirs}") for part in parts]


def numbers(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Fields of GPTConfig from config.json, where they are called as `names` says. Raises ValueError.

    What may be None in a GPTConfig may be missing.
    """
    found = {}
    for ours, theirs in names.items():
        default, value = getattr(GPTConfig, ours), values.get(theirs)
        if not (value is None and default is None):
            check_number(theirs, value, whole=not isinstance(default, float))
        found[ours] = float(value) if isinstance(default, float) else value
    return found


def check_number(name: str, value: Any, whole: bool = False) -> None:
    """Raises ValueError for what is no number; JSON has a type for whole ones."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"{name} is {value!r}, expected {'an integer' if whole else 'a number'}")


def check_fixed(values: dict[str, Any], fixed: dict[str, Any]) -> None:
    """Raises ValueError where config.json asks for what our model does not do; `fixed` is what it does."""
    for name, ours in fixed.items():
        if (value := values.get(name, ours)) != ours:
            raise ValueError(f"{name} is {value!r}, and only {ours!r} can be computed here")


def which_family(families: dict[str, Family], config: GPTConfig) -> Family:
    """The family that a model is of. Raises UserError that names what stands in the way of each."""
    obstacles = {family.architecture: family.obstacles(config) for family in families.values()}
    for family in families.values():
        if not obstacles[family.architecture]:
            return family
    reasons = "; ".join(f"for {name}: {', '.join(found)}" for name, found in obstacles.items())
    raise UserError(f"no class of transformers computes this model. What stands in the way, {reasons}")
