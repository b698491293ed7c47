"""GPT-2 in Hugging Face's format: `GPT2LMHeadModel`, also in the files of openai-community/gpt2.

Its matrices are (in, out), as ours. Its c_attn is our c_q, c_k and c_v, one after another.
Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
"""

from typing import Any

from hub.family import Family, Tensor
from model import GPTConfig


def read_rest(values: dict[str, Any]) -> dict[str, Any]:
    return {"mlp": "relu2" if values.get("activation_function") == "relu2" else "gelu", "bias": True}


def write_rest(config: GPTConfig) -> dict[str, Any]:
    return {
        "activation_function": "relu2" if config.mlp == "relu2" else "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "quantization_config": None,
    }


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
    read_rest=read_rest,
    write_rest=write_rest,
    not_weights=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",  # causal masks
    tensors={
        "wte": Tensor("transformer.wte.weight", "v d -> v d"),
        "wpe": Tensor("transformer.wpe.weight", "t d -> t d"),
        "blocks.ln_1.weight": Tensor("transformer.h.{i}.ln_1.weight", "d -> d"),
        "blocks.ln_1.bias": Tensor("transformer.h.{i}.ln_1.bias", "d -> d"),
        "blocks.attn.c_q.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 0, 3),
        "blocks.attn.c_k.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 1, 3),
        "blocks.attn.c_v.weight": Tensor("transformer.h.{i}.attn.c_attn.weight", "d (h c) -> d h c", 2, 3),
        "blocks.attn.c_q.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 0, 3),
        "blocks.attn.c_k.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 1, 3),
        "blocks.attn.c_v.bias": Tensor("transformer.h.{i}.attn.c_attn.bias", "(h c) -> h c", 2, 3),
        "blocks.attn.c_proj.weight": Tensor("transformer.h.{i}.attn.c_proj.weight", "i d -> i d"),
        "blocks.attn.c_proj.bias": Tensor("transformer.h.{i}.attn.c_proj.bias", "d -> d"),
        "blocks.ln_2.weight": Tensor("transformer.h.{i}.ln_2.weight", "d -> d"),
        "blocks.ln_2.bias": Tensor("transformer.h.{i}.ln_2.bias", "d -> d"),
        "blocks.mlp.c_fc.weight": Tensor("transformer.h.{i}.mlp.c_fc.weight", "d f -> d f"),
        "blocks.mlp.c_fc.bias": Tensor("transformer.h.{i}.mlp.c_fc.bias", "f -> f"),
        "blocks.mlp.c_proj.weight": Tensor("transformer.h.{i}.mlp.c_proj.weight", "f d -> f d"),
        "blocks.mlp.c_proj.bias": Tensor("transformer.h.{i}.mlp.c_proj.bias", "d -> d"),
        "ln_f.weight": Tensor("transformer.ln_f.weight", "d -> d"),
        "ln_f.bias": Tensor("transformer.ln_f.bias", "d -> d"),
        "lm_head": Tensor("lm_head.weight", "v d -> v d"),
    },
)
