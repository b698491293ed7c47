"""Families of models in Hugging Face's format: GPT-2, Llama, and Llamas with more: Mistral, Qwen2, Qwen3.

transformers reads a config.json, for its spellings and defaults. A family's table names the tensor of each of
our arrays, with a pattern of einops from their axes to ours:

    "blocks.attn.c_q.weight": Tensor("model.layers.{i}.self_attn.q_proj.weight", "(h c) d -> d h c"),

so each layer i has a matrix (H C, D), which becomes our (D, H, C).

GPT-2: Radford et al., 2019. Llama: arXiv:2302.13971, 2407.21783. Mistral: arXiv:2310.06825. Qwen2:
arXiv:2407.10671. Qwen3: arXiv:2505.09388.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from einops import rearrange

from config.command_line import UserError, check_value, spell
from config.options import Options
from data.pretrained import transformers
from model import GPTConfig

MOST_LAYERS = 10_000
NOT_READ = ("model_type", "num_labels")  # a large num_labels would fill the memory with names


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
    sizes: dict[str, str]  # fields of GPTConfig that config.json has as well, and what it calls them
    read_rest: Callable[[dict[str, Any]], dict[str, Any]]  # the other fields; raises ValueError
    write_rest: Callable[[GPTConfig], dict[str, Any]]  # the other entries, of the nearest such model
    not_weights: str  # a regular expression for other tensors of a checkpoint
    tensors: dict[str, Tensor]  # by our names

    def read_config(self, values: dict[str, Any]) -> GPTConfig:
        """Read a config.json. Raises UserError or ValueError for a model that we do not compute."""
        values = self.complete(values)
        fields = {ours: check_size(ours, theirs, values.get(theirs)) for ours, theirs in self.sizes.items()}
        config = GPTConfig(**fields | self.read_rest(values))
        # Rope has several spellings, which read_rest checks.
        rest = {name: ours for name, ours in self.write_rest(config).items() if not name.startswith("rope_")}
        check_entries(values, rest | {"per_layer_config": None, "quantization_config": None})
        return config

    def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a config.json with the defaults and the spelling of transformers. Raises ValueError."""
        n_layer = values.get(name := self.sizes["n_layer"])
        if isinstance(n_layer, int) and n_layer > MOST_LAYERS:  # transformers makes lists as long
            raise ValueError(f"{name} is {n_layer}, and {MOST_LAYERS} at most can be read")
        given = {name: value for name, value in values.items() if name not in NOT_READ}
        try:
            return transformers().AutoConfig.for_model(self.model_type, **given).to_dict()
        except Exception as error:  # of many classes, for values of a wrong type
            raise ValueError(f"transformers refuses it: {error}") from None


def check_size(ours: str, theirs: str, value: Any) -> Any:
    """Return the value of an entry of config.json, within our field's limits. Raises ValueError."""
    try:
        return check_value(ours, value, "", Options)
    except UserError as error:
        raise ValueError(str(error).replace(ours, theirs, 1)) from None


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
    }


LAYERS = ("ln_1", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")  # named and laid out as ours
AS_OURS = [f"{layer}.{array}" for layer in LAYERS for array in ("weight", "bias")]

GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    biases=True,
    sizes={
        "block_size": "n_positions",
        "vocab_size": "vocab_size",
        "tie_embeddings": "tie_word_embeddings",
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
    rope = values["rope_parameters"]
    kind = rope["rope_type"]
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_type is {spell(kind)}, and only 'default' and 'llama3' can be computed here")
    check_entries(rope, {"partial_rotary_factor": 1} | (LLAMA3 if kind == "llama3" else {}))
    return {
        "position": "rope",
        "norm": "rmsnorm",
        "mlp": "swiglu",
        "bias": False,
        "rope_theta": check_size("rope_theta", "rope_theta", rope["rope_theta"]),
        "rope_scaling": check_size("rope_scaling", "factor", rope["factor"]) if kind == "llama3" else 1.0,
    }


def write_llama(config: GPTConfig) -> dict[str, Any]:
    scaled = {"rope_type": "llama3", "factor": config.rope_scaling} | LLAMA3
    return {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": config.head_size,
        "sliding_window": config.window,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rope_scaling == 1 else scaled,
    }


def read_qwen(values: dict[str, Any]) -> dict[str, Any]:
    all_layers = "full_attention" if values["sliding_window"] is None else "sliding_attention"
    if set(values["layer_types"]) != {all_layers}:
        raise ValueError("layer_types differ, and only layers of one kind can be computed here")
    return read_llama(values)


def write_qwen(config: GPTConfig) -> dict[str, Any]:
    windows = {"use_sliding_window": True, "max_window_layers": 0} if config.window else {}
    return write_llama(config) | windows


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    biases=False,
    sizes={
        "block_size": "max_position_embeddings",
        "vocab_size": "vocab_size",
        "tie_embeddings": "tie_word_embeddings",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_kv_head": "num_key_value_heads",
        "n_embd": "hidden_size",
        "head_dim": "head_dim",
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

ATTENTION = "model.layers.{i}.self_attn."
QKV_BIASES = {f"blocks.attn.c_{x}.bias": Tensor(f"{ATTENTION}{x}_proj.bias", "(h c) -> h c") for x in "qkv"}
QK_NORMS = {f"blocks.attn.{x}_norm.weight": Tensor(f"{ATTENTION}{x}_norm.weight") for x in "qk"}
SIZES = LLAMA.sizes | {"window": "sliding_window"}
MISTRAL = replace(LLAMA, model_type="mistral", architecture="MistralForCausalLM", sizes=SIZES)
QWEN2 = replace(
    MISTRAL,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    read_rest=lambda values: read_qwen(values) | {"qkv_bias": True},
    write_rest=write_qwen,
    tensors=LLAMA.tensors | QKV_BIASES,
)
QWEN3 = replace(
    MISTRAL,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    read_rest=lambda values: read_qwen(values) | {"qk_norm": True},
    write_rest=write_qwen,
    tensors=LLAMA.tensors | QK_NORMS,
)

FAMILIES = {family.model_type: family for family in (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)}
