"""Reference models from `transformers`, with random weights, and a GPT of ours with the same weights.

Nothing is downloaded: a reference is made from a configuration. Its tensors, be they weights or gradients,
are renamed and stacked over the layers to match ours, so that the two can be compared leaf by leaf.
"""

import re
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from model import GPT, GPTConfig
from tests.helpers import slowly

SIZE = dict(block_size=16, vocab_size=65, n_layer=3, n_head=4, n_embd=48)
GPT2 = GPTConfig(**SIZE, mlp="gelu", bias=True)
LLAMA = replace(GPT2, position="rope", norm="rmsnorm", mlp="swiglu", bias=False, tie_embeddings=False)
CONFIGS = {
    "gpt2": GPT2,
    "llama": replace(LLAMA, n_kv_head=2),
    "llama, tied": replace(LLAMA, n_kv_head=1, tie_embeddings=True, rope_theta=500.0),
    # Of its 6 frequencies, one is scaled in part and two are scaled in full.
    "llama 3": replace(
        LLAMA, n_kv_head=2, n_hidden=100, norm_eps=1e-2, rope_theta=500000.0, rope_scaling=32.0
    ),
    "mistral": replace(LLAMA, n_kv_head=2, window=5),
    "mistral, nemo": replace(LLAMA, n_kv_head=2, head_dim=20),
    "qwen2": replace(LLAMA, n_kv_head=2, qkv_bias=True, tie_embeddings=True),
    "qwen2, window": replace(LLAMA, n_kv_head=2, qkv_bias=True, window=5),
    "qwen3": replace(LLAMA, n_kv_head=2, head_dim=20, qk_norm=True),
}
# The names, for tests; of those that run with the slow ones, another has each option.
RARE = ("llama, tied", "mistral, nemo", "qwen2, window")
NAMES = [name for name in CONFIGS if name not in RARE] + slowly(*RARE)
# transformers' parameters of the scaling, as in Llama 3.2's config.json.
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}

# A layer's tensors: ours, and Llama's, which are (out, in).
LLAMA_LAYER = {
    "ln_1.weight": "input_layernorm",
    "attn.c_q.weight": "self_attn.q_proj",
    "attn.c_k.weight": "self_attn.k_proj",
    "attn.c_v.weight": "self_attn.v_proj",
    "attn.c_q.bias": "self_attn.q_proj",
    "attn.c_k.bias": "self_attn.k_proj",
    "attn.c_v.bias": "self_attn.v_proj",
    "attn.q_norm.weight": "self_attn.q_norm",
    "attn.k_norm.weight": "self_attn.k_norm",
    "attn.c_proj.weight": "self_attn.o_proj",
    "ln_2.weight": "post_attention_layernorm",
    "mlp.c_gate.weight": "mlp.gate_proj",
    "mlp.c_fc.weight": "mlp.up_proj",
    "mlp.c_proj.weight": "mlp.down_proj",
}


def random_reference(name: str) -> torch.nn.Module:
    """The `transformers` model of CONFIGS[name]. Weights are large enough for its logits to spread."""
    config = CONFIGS[name]
    torch.manual_seed(0)
    kind = re.split("[ ,]", name)[0]
    model = {"gpt2": gpt2, "llama": llama}.get(kind, partial(more_than_llama, kind))(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # gains and biases too, which start out as ones and zeros
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def gpt2(config: GPTConfig) -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            layer_norm_epsilon=config.norm_eps,
            vocab_size=config.vocab_size,
            n_positions=config.block_size,
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.n_embd,
            bos_token_id=None,  # GPT-2's own are beyond this vocabulary
            eos_token_id=None,
        )
    )


def llama(config: GPTConfig) -> torch.nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            max_position_embeddings=config.block_size,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            num_key_value_heads=config.kv_heads,
            hidden_size=config.n_embd,
            intermediate_size=config.hidden,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta}
            | ({} if config.rope_scaling == 1 else LLAMA3 | {"factor": config.rope_scaling}),
            rms_norm_eps=config.norm_eps,
            bos_token_id=None,
            eos_token_id=None,
            tie_word_embeddings=config.tie_embeddings,
        )
    )


def more_than_llama(kind: str, config: GPTConfig) -> torch.nn.Module:
    """The model of a class whose config has all that Llama's has, and more: mistral, qwen2 or qwen3."""
    values = llama(replace(config, window=None, head_dim=None)).config.to_dict() | {"model_type": kind}
    values |= {"sliding_window": config.window, "head_dim": config.head_size}
    values |= {"use_sliding_window": config.window is not None, "max_window_layers": 0}
    theirs = transformers.AutoConfig.for_model(**values)
    return transformers.AutoModelForCausalLM.from_config(theirs)


def as_gpt(name: str, tensors: dict[str, torch.Tensor]) -> GPT:
    """A GPT of CONFIGS[name] whose leaves are the reference's `tensors`, every one of them used."""
    config = CONFIGS[name]
    tensors = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    arrays = (from_gpt2 if name == "gpt2" else from_llama)(tensors, config)
    assert not tensors, f"not used: {list(tensors)}"
    skeleton = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))

    def fill(path, leaf):
        array = arrays.pop(jax.tree_util.keystr(path, simple=True, separator="."))
        assert array.shape == leaf.shape
        return jnp.asarray(array)

    model = jax.tree_util.tree_map_with_path(fill, skeleton)
    assert not arrays, f"not used: {list(arrays)}"
    return model


def from_gpt2(tensors, config):
    """GPT-2's tensors under our names, which are GPT-2's; `tensors` is emptied.

    All have our shapes, but for c_attn, which is queries, keys and values one after another.
    """
    arrays = {table: tensors.pop(f"transformer.{table}.weight") for table in ("wte", "wpe")}
    arrays |= {f"ln_f.{part}": tensors.pop(f"transformer.ln_f.{part}") for part in ("weight", "bias")}
    names = [name.removeprefix("transformer.h.0.") for name in tensors if name.startswith("transformer.h.0.")]
    for name in names:
        layers = np.stack([tensors.pop(f"transformer.h.{i}.{name}") for i in range(config.n_layer)])
        if "c_attn" not in name:
            arrays[f"blocks.{name}"] = layers
            continue
        for ours, part in zip(("c_q", "c_k", "c_v"), np.split(layers, 3, axis=-1), strict=True):
            heads = part.reshape(*part.shape[:-1], config.n_head, config.head_size)
            arrays[f"blocks.{name.replace('c_attn', ours)}"] = heads
    return arrays


def from_llama(tensors, config):
    """Llama's tensors under our names; `tensors` is emptied."""
    arrays = {
        "wte": tensors.pop("model.embed_tokens.weight"),
        "ln_f.weight": tensors.pop("model.norm.weight"),
    }
    if not config.tie_embeddings:
        arrays["lm_head"] = tensors.pop("lm_head.weight")
    for ours, theirs in LLAMA_LAYER.items():
        names = [f"model.layers.{i}.{theirs}.{ours.split('.')[-1]}" for i in range(config.n_layer)]
        if names[0] not in tensors:  # biases and norms of queries and keys, where there are some
            continue
        layers = np.stack([tensors.pop(name).T for name in names])
        if ours.startswith(("attn.c_q", "attn.c_k", "attn.c_v")):
            layers = layers.reshape(*layers.shape[:-1], -1, config.head_size)  # (L, D, heads, C)
        arrays[f"blocks.{ours}"] = layers
    return arrays
