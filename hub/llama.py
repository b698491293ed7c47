"""Llama in Hugging Face's format: `LlamaForCausalLM`, which Llama 1 to 3, SmolLM2 and TinyLlama are.

Its matrices are (out, in), ours (in, out). The rotary embedding has the same layout in both.
arXiv:2302.13971, and arXiv:2407.21783 for Llama 3.
"""

from typing import Any

from config.command_line import spell
from hub.family import Family, Tensor, check_fixed, check_number, is_tied, numbers
from model import GPTConfig

SIZES = {
    "block_size": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "n_embd": "hidden_size",
    "n_hidden": "intermediate_size",
    "norm_eps": "rms_norm_eps",
}
FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "quantization_config": None,
}
LLAMA_SHAPE = {
    **{"position": "rope", "norm": "rmsnorm", "mlp": "swiglu"},
    **{"bias": False, "qk_norm": False, "window": None},
}
# All of Meta's models with rope_type "llama3" have these values; see layers/attention.py.
LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}


def read_config(values: dict[str, Any]) -> GPTConfig:
    check_fixed(values, FIXED)
    sizes, tie = numbers(values, SIZES), is_tied(values, default=False)
    config = GPTConfig(**sizes, **LLAMA_SHAPE, **read_rope(values), tie_embeddings=tie)
    if values.get("head_dim") not in (None, config.head_size):
        raise ValueError(
            f"head_dim is {spell(values['head_dim'])}, and only hidden_size / num_attention_heads, here "
            f"{config.head_size}, can be computed here"
        )
    return config


def read_rope(values: dict[str, Any]) -> dict[str, float]:
    """Return `rope_theta` and `rope_scaling`; transformers 5 has one entry for both, earlier ones two."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"its rope parameters are {spell(rope)}, expected an object")
    theta = rope.get("rope_theta", values.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling: Any = rope.get("factor") if kind == "llama3" else 1.0
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_type is {spell(kind)}, and only 'default' and 'llama3' can be computed here")
    check_fixed(rope, {"partial_rotary_factor": 1} | (LLAMA3 if kind == "llama3" else {}))
    check_number("rope_theta", theta)
    check_number("the factor of rope_type 'llama3'", scaling)
    return {"rope_theta": float(theta), "rope_scaling": float(scaling)}


def write_config(config: GPTConfig) -> dict[str, Any]:
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZES.items()}
    scaled = {"rope_type": "llama3", "factor": config.rope_scaling} | LLAMA3
    return sizes | {
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.hidden,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rope_scaling == 1 else scaled,
        "tie_word_embeddings": config.tie_embeddings,
    }


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    not_weights=r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    read_config=read_config,
    write_config=write_config,
    needs=lambda config: LLAMA_SHAPE,
    biases=False,
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
