"""Families of models in Hugging Face's format: GPT-2, Llama, and Mistral, a Llama with a sliding window.

A family's table names the tensor of each of our arrays, with a pattern of einops from their axes to ours:

    "blocks.attn.c_q.weight": Tensor("model.layers.{i}.self_attn.q_proj.weight", "(h c) d -> d h c"),

so each layer i has a matrix (H C, D), which becomes our (D, H, C).

Llama: arXiv:2302.13971, 2407.21783. Mistral: arXiv:2310.06825. GPT-2: Radford et al., 2019.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from einops import rearrange

from config.command_line import check_values, spell
from model import GPTConfig


class Tensor(NamedTuple):
    """The tensor of theirs that holds one of our arrays, alone or with others."""

    name: str  # theirs; {i} stands for the layer
    pattern: str = "... -> ..."  # from their axes to ours; `c` is the head size C
    part: int = 0  # which of the equal parts of their last axis is ours
    parts: int = 1

    def to_ours(self, array, config: GPTConfig):
        """Return our array from their tensor."""
        width = array.shape[-1] // self.parts
        part = array[..., self.part * width : (self.part + 1) * width]
        return rearrange(part, self.pattern, **({"c": config.head_size} if "c" in self.pattern else {}))

    def to_theirs(self, array):
        """Return the part of their tensor that our array is."""
        theirs, ours = self.pattern.split(" -> ")
        return rearrange(array, f"{ours} -> {theirs}")

    def their_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of their tensor, all parts included, for our array's shape."""
        *rest, last = jax.eval_shape(self.to_theirs, jax.ShapeDtypeStruct(shape, "float32")).shape
        return (*rest, last * self.parts)


@dataclass(frozen=True)
class Family:
    """A family of models: its `config.json` and its tensors, next to ours."""

    model_type: str  # in config.json
    architecture: str  # the class of transformers
    prefix: str  # of all tensors but the head's; some checkpoints leave it out
    biases: bool  # whether its layers have them
    tied: bool  # whether the head is the embedding where config.json does not say
    sizes: dict[str, str]  # fields of GPTConfig that are numbers, and what config.json calls them
    read_rest: Callable[[dict[str, Any]], dict[str, Any]]  # the other fields; raises ValueError
    write_rest: Callable[[GPTConfig], dict[str, Any]]  # the other entries, of the nearest such model
    not_weights: str  # a regular expression for other tensors of a checkpoint
    tensors: dict[str, Tensor]  # by our names

    def read_config(self, values: dict[str, Any]) -> GPTConfig:
        """Read a config.json. Raises UserError or ValueError for a model that we do not compute."""
        sizes = {ours: values.get(theirs) for ours, theirs in self.sizes.items()}
        tied = values.get("tie_word_embeddings", self.tied)
        fields = sizes | self.read_rest(values) | {"tie_embeddings": tied}
        config = GPTConfig(**check_values(fields, "", GPTConfig))
        # Rope has several spellings, which read_rest checks.
        rest = {name: ours for name, ours in self.write_rest(config).items() if not name.startswith("rope_")}
        check_entries(values, rest)
        return config


def check_entries(values: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raise ValueError where config.json asks for what our model, `ours`, does not do."""
    for name, value in ours.items():
        if values.get(name) not in (None, value):
            raise ValueError(f"{name} is {spell(values[name])}, and only {value!r} can be computed here")


def read_gpt2(values: dict[str, Any]) -> dict[str, Any]:
    mlp = {"gelu": "gelu_erf", "relu2": "relu2"}.get(str(values.get("activation_function")), "gelu")
    return {"mlp": mlp, "bias": True}


def write_gpt2(config: GPTConfig) -> dict[str, Any]:
    return {
        "activation_function": {"gelu_erf": "gelu", "relu2": "relu2"}.get(config.mlp, "gelu_new"),
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "quantization_config": None,
    }


LAYERS = ("ln_1", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")  # named and laid out as ours
AS_OURS = [f"{layer}.{array}" for layer in LAYERS for array in ("weight", "bias")]

GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    biases=True,
    tied=True,
    sizes={
        "block_size": "n_positions",
        "vocab_size": "vocab_size",
        "n_layer": "n_layer",
        "n_head": "n_head",
        "n_embd": "n_embd",
        "n_hidden": "n_inner",
        "norm_eps": "layer_norm_epsilon",
    },
    read_rest=read_gpt2,
    write_rest=write_gpt2,
    not_weights=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",  # causal masks
    tensors={
        "wte": Tensor("transformer.wte.weight"),
        "wpe": Tensor("transformer.wpe.weight"),
        **{f"blocks.{name}": Tensor(f"transformer.h.{{i}}.{name}") for name in AS_OURS},
        "blocks.attn.c_q.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 0, 3),
        "blocks.attn.c_k.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 1, 3),
        "blocks.attn.c_v.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 2, 3),
        "blocks.attn.c_q.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 0, 3),
        "blocks.attn.c_k.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 1, 3),
        "blocks.attn.c_v.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 2, 3),
        "ln_f.weight": Tensor("transformer.ln_f.weight"),
        "ln_f.bias": Tensor("transformer.ln_f.bias"),
        "lm_head": Tensor("lm_head.weight"),
    },
)

# All models with rope_type "llama3" have these values.
LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}


def read_llama(values: dict[str, Any]) -> dict[str, Any]:
    # transformers 5 has one entry for `rope_theta` and `rope_scaling`, earlier ones two.
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"its rope parameters are {spell(rope)}, expected an object")
    rope = {"rope_theta": values.get("rope_theta", 10000.0)} | rope
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_type is {spell(kind)}, and only 'default' and 'llama3' can be computed here")
    check_entries(rope, {"partial_rotary_factor": 1} | (LLAMA3 if kind == "llama3" else {}))
    return {
        "position": "rope",
        "norm": "rmsnorm",
        "mlp": "swiglu",
        "bias": False,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": rope.get("factor") if kind == "llama3" else 1.0,
    }


def write_llama(config: GPTConfig) -> dict[str, Any]:
    scaled = {"rope_type": "llama3", "factor": config.rope_scaling} | LLAMA3
    return {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": config.head_size,
        "sliding_window": config.window,
        "quantization_config": None,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rope_scaling == 1 else scaled,
    }


def read_mistral(values: dict[str, Any]) -> dict[str, Any]:
    return read_llama(values) | {"window": values.get("sliding_window", 4096)}  # transformers' default


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    biases=False,
    tied=False,
    sizes={
        "block_size": "max_position_embeddings",
        "vocab_size": "vocab_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_kv_head": "num_key_value_heads",
        "n_embd": "hidden_size",
        "n_hidden": "intermediate_size",
        "norm_eps": "rms_norm_eps",
    },
    read_rest=read_llama,
    write_rest=write_llama,
    not_weights=r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    tensors={
        "wte": Tensor("model.embed_tokens.weight"),
        "blocks.ln_1.weight": Tensor("model.layers.{i}.input_layernorm.weight"),
        "blocks.attn.c_q.weight": Tensor("model.layers.{i}.self_attn.q_proj.weight", "(h c) d -> d h c"),
        "blocks.attn.c_k.weight": Tensor("model.layers.{i}.self_attn.k_proj.weight", "(k c) d -> d k c"),
        "blocks.attn.c_v.weight": Tensor("model.layers.{i}.self_attn.v_proj.weight", "(k c) d -> d k c"),
        "blocks.attn.c_proj.weight": Tensor("model.layers.{i}.self_attn.o_proj.weight", "d i -> i d"),
        "blocks.ln_2.weight": Tensor("model.layers.{i}.post_attention_layernorm.weight"),
        "blocks.mlp.c_gate.weight": Tensor("model.layers.{i}.mlp.gate_proj.weight", "f d -> d f"),
        "blocks.mlp.c_fc.weight": Tensor("model.layers.{i}.mlp.up_proj.weight", "f d -> d f"),
        "blocks.mlp.c_proj.weight": Tensor("model.layers.{i}.mlp.down_proj.weight", "d f -> f d"),
        "ln_f.weight": Tensor("model.norm.weight"),
        "lm_head": Tensor("lm_head.weight"),
    },
)

MISTRAL = replace(LLAMA, model_type="mistral", architecture="MistralForCausalLM", read_rest=read_mistral)

FAMILIES = {family.model_type: family for family in (GPT2, LLAMA, MISTRAL)}
