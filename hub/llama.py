"""Llama in Hugging Face's format: `LlamaForCausalLM`, which Llama 1 to 3, SmolLM2 and TinyLlama are.

Mistral, `MistralForCausalLM`, is Llama with a sliding window (arXiv:2310.06825). The matrices of both are
(out, in), ours (in, out). The rotary embedding has the same layout in all. arXiv:2302.13971, and
arXiv:2407.21783 for Llama 3.
"""

from dataclasses import replace
from typing import Any

from config.command_line import spell
from hub.family import Family, Tensor, check_entries, check_number
from model import GPTConfig

# All of Meta's models with rope_type "llama3" have these values; see layers/attention.py.
LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}


def read_rest(values: dict[str, Any]) -> dict[str, Any]:
    # transformers 5 has one entry for `rope_theta` and `rope_scaling`, earlier ones two.
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"its rope parameters are {spell(rope)}, expected an object")
    theta = rope.get("rope_theta", values.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling: Any = rope.get("factor") if kind == "llama3" else 1.0
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_type is {spell(kind)}, and only 'default' and 'llama3' can be computed here")
    check_entries(rope, {"partial_rotary_factor": 1} | (LLAMA3 if kind == "llama3" else {}))
    check_number("rope_theta", theta)
    check_number("the factor of rope_type 'llama3'", scaling)
    shape = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "bias": False}
    return shape | {"rope_theta": float(theta), "rope_scaling": float(scaling)}


def write_rest(config: GPTConfig) -> dict[str, Any]:
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
    window = values.get("sliding_window", 4096)  # transformers' default
    if window is not None:
        check_number("sliding_window", window, integer=True)
    return read_rest(values) | {"window": window}


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
    read_rest=read_rest,
    write_rest=write_rest,
    not_weights=r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    tensors={
        "wte": Tensor("model.embed_tokens.weight", "v d -> v d"),
        "blocks.ln_1.weight": Tensor("model.layers.{i}.input_layernorm.weight", "d -> d"),
        "blocks.attn.c_q.weight": Tensor("model.layers.{i}.self_attn.q_proj.weight", "(h c) d -> d h c"),
        "blocks.attn.c_k.weight": Tensor("model.layers.{i}.self_attn.k_proj.weight", "(k c) d -> d k c"),
        "blocks.attn.c_v.weight": Tensor("model.layers.{i}.self_attn.v_proj.weight", "(k c) d -> d k c"),
        "blocks.attn.c_proj.weight": Tensor("model.layers.{i}.self_attn.o_proj.weight", "d i -> i d"),
        "blocks.ln_2.weight": Tensor("model.layers.{i}.post_attention_layernorm.weight", "d -> d"),
        "blocks.mlp.c_gate.weight": Tensor("model.layers.{i}.mlp.gate_proj.weight", "f d -> d f"),
        "blocks.mlp.c_fc.weight": Tensor("model.layers.{i}.mlp.up_proj.weight", "f d -> d f"),
        "blocks.mlp.c_proj.weight": Tensor("model.layers.{i}.mlp.down_proj.weight", "d f -> f d"),
        "ln_f.weight": Tensor("model.norm.weight", "d -> d"),
        "lm_head": Tensor("lm_head.weight", "v d -> v d"),
    },
)

MISTRAL = replace(LLAMA, model_type="mistral", architecture="MistralForCausalLM", read_rest=read_mistral)
