"""A family of models in Hugging Face's format: a table that weights.py reads with and export.py writes with.

It names the tensor of each of our arrays, and gives a pattern of einops from their axes to ours:

    "blocks.attn.c_q.weight": Tensor("model.layers.{i}.self_attn.q_proj.weight", "(h c) d -> d h c"),

so each layer i has a matrix (H C, D), which becomes our (D, H, C). Where one tensor of theirs is several of
ours, as GPT-2's c_attn is, ours are its parts along the last axis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
from einops import rearrange

from config.command_line import UserError, spell
from config.files import is_number, is_whole
from model import GPT, GPTConfig
from parallel.sharding import leaf_name

# The options that decide a model's family. So do biases, unless the family has them: they may be 0.
DECIDING = ("mlp", "position", "norm", "qk_norm", "window", "n_kv_head", "n_hidden", "attention_gate")


class Tensor(NamedTuple):
    """The tensor of their format that holds one of our arrays, alone or with others."""

    name: str  # theirs; {i} stands for the layer
    pattern: str  # from their axes to ours; `c` is the head size C
    part: int = 0  # which of the equal parts of their last axis is ours
    parts: int = 1


@dataclass(frozen=True)
class Family:
    """A family of models: its `config.json` and its tensors, next to ours."""

    model_type: str  # in config.json
    architecture: str  # the class of transformers
    prefix: str  # of all tensors but the head's; checkpoints without a head leave it out
    biases: bool  # whether its layers have them
    tied: bool  # whether the head is the embedding where config.json does not say
    sizes: dict[str, str]  # fields of GPTConfig that are numbers, and what config.json calls them
    read_rest: Callable[[dict[str, Any]], dict[str, Any]]  # the other fields; raises ValueError
    write_rest: Callable[[GPTConfig], dict[str, Any]]  # the other entries, of the nearest model of the family
    not_weights: str  # a regular expression for other tensors of a checkpoint
    tensors: dict[str, Tensor]  # by our names

    def read_config(self, values: dict[str, Any]) -> GPTConfig:
        """Read a config.json. Raises ValueError for a model that we do not compute."""
        sizes = read_numbers(values, self.sizes)
        tied = values.get("tie_word_embeddings", self.tied)
        if not isinstance(tied, bool):
            raise ValueError(f"tie_word_embeddings is {spell(tied)}, expected true or false")
        config = GPTConfig(**sizes, **self.read_rest(values), tie_embeddings=tied)
        # Rope has several spellings, which read_rest checks.
        rest = {name: ours for name, ours in self.write_rest(config).items() if not name.startswith("rope_")}
        check_entries(values, rest)
        return config

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        """Return the entries of config.json."""
        sizes = {theirs: resolved(config)[ours] for ours, theirs in self.sizes.items()}
        rest = {name: value for name, value in self.write_rest(config).items() if value is not None}
        return sizes | rest | {"tie_word_embeddings": config.tie_embeddings}

    def obstacles(self, config: GPTConfig) -> list[str]:
        """List the options that keep a model from being of this family: those that config.json cannot say."""
        ours = resolved(config)
        try:
            theirs = resolved(self.read_config(self.write_config(config)))
        except ValueError as error:
            return [str(error)]
        deciding = DECIDING if self.biases else (*DECIDING, "bias")
        return [f"{name}={ours[name]}, not {theirs[name]}" for name in deciding if ours[name] != theirs[name]]


def resolved(config: GPTConfig) -> dict[str, Any]:
    """Return a config's fields, with numbers in place of None."""
    return (
        {"attention_gate": False} | vars(config) | {"n_kv_head": config.kv_heads, "n_hidden": config.hidden}
    )


class Entry(NamedTuple):
    """The tensor that an array of ours, or each layer of it, is in a model of a known shape."""

    layers: int | None  # None: it is not in a block
    tensor: Tensor
    shape: tuple[int, ...]  # of their tensor, all parts included

    def name(self, i: int | None = None) -> str:
        """Return their name, for layer i."""
        return self.tensor.name.format(i=i)


def entries(family: Family, config: GPTConfig) -> dict[str, Entry]:
    """Describe all arrays of a model, by our names, in the order of its leaves."""
    shapes = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
    found = {}
    for path, ours in jax.tree.leaves_with_path(shapes):
        name = leaf_name(path)
        tensor = family.tensors[name]
        layers = config.n_layer if name.startswith("blocks.") else None
        one = jax.ShapeDtypeStruct(ours.shape[1:] if layers else ours.shape, ours.dtype)
        *rest, last = jax.eval_shape(partial(to_theirs, tensor=tensor), one).shape
        found[name] = Entry(layers, tensor, (*rest, last * tensor.parts))
    return found


def to_ours(array, tensor: Tensor, config: GPTConfig):
    """Return our array from their tensor."""
    width = array.shape[-1] // tensor.parts
    part = array[..., tensor.part * width : (tensor.part + 1) * width]
    return rearrange(part, tensor.pattern, **({"c": config.head_size} if "c" in tensor.pattern else {}))


def to_theirs(array, tensor: Tensor):
    """Return the part of their tensor that our array is."""
    theirs, ours = tensor.pattern.split(" -> ")
    return rearrange(array, f"{ours} -> {theirs}")


def read_numbers(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Read fields of GPTConfig from config.json, where they are called as `names` says. Raises ValueError.

    What may be None in a GPTConfig may be missing.
    """
    found = {}
    for ours, theirs in names.items():
        default: Any = getattr(GPTConfig, ours)
        value: Any = values.get(theirs)
        if not (value is None and default is None):
            check_number(theirs, value, integer=not isinstance(default, float))
        found[ours] = float(value) if isinstance(default, float) else value
    return found


def check_number(name: str, value: Any, integer: bool = False) -> None:
    """Raise ValueError for what is no number, or no integer."""
    if not (is_whole(value) if integer else is_number(value)):
        raise ValueError(f"{name} is {spell(value)}, expected {'an integer' if integer else 'a number'}")


def check_entries(values: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raise ValueError where config.json asks for what our model, described by `ours`, does not do."""
    for name, value in ours.items():
        if values.get(name) not in (None, value):
            raise ValueError(f"{name} is {spell(values[name])}, and only {value!r} can be computed here")


def which_family(families: dict[str, Family], config: GPTConfig) -> Family:
    """Return the family of a model. Raises UserError, with the options that stand in the way."""
    obstacles = {family.architecture: family.obstacles(config) for family in families.values()}
    for family in families.values():
        if not obstacles[family.architecture]:
            return family
    reasons = "; ".join(f"for {name}: {', '.join(found)}" for name, found in obstacles.items())
    raise UserError(
        "no class of transformers computes this model; train one with the options of a class that does. "
        f"What stands in the way, {reasons}"
    )
