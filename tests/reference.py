"""Reference models from `transformers`, with random weights, and a GPT of ours with the same weights.

Nothing is downloaded: a reference is made from a configuration. Its tensors, be they weights or gradients,
get our names and axes by the tables of hub/weights.py, so that the two can be compared leaf by leaf.
"""

import re
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from hub.weights import FAMILIES, Tensor
from model import GPT, GPTConfig, leaf_name
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


def kind(name: str) -> str:
    """Return the family of CONFIGS[name]."""
    return re.split("[ ,]", name)[0]


def random_reference(name: str) -> torch.nn.Module:
    """The `transformers` model of CONFIGS[name]. Weights are large enough for its logits to spread."""
    config = CONFIGS[name]
    torch.manual_seed(0)
    model = (gpt2(config) if name == "gpt2" else like_llama(kind(name), config)).eval()
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


def like_llama(kind: str, config: GPTConfig) -> torch.nn.Module:
    """The model of Llama's class, or of one whose config has all that Llama's has, and more."""
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    scaled = LLAMA3 | {"factor": config.rope_scaling}
    values = dict(
        vocab_size=config.vocab_size,
        max_position_embeddings=config.block_size,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        num_key_value_heads=config.kv_heads,
        hidden_size=config.n_embd,
        intermediate_size=config.hidden,
        rope_parameters=rope if config.rope_scaling == 1 else rope | scaled,
        rms_norm_eps=config.norm_eps,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=config.tie_embeddings,
    )
    if kind != "llama":
        windowed = config.window is not None
        values |= dict(head_dim=config.head_size, sliding_window=config.window)
        values |= dict(use_sliding_window=windowed, max_window_layers=0)
    theirs = transformers.AutoConfig.for_model(kind, **values)
    return transformers.AutoModelForCausalLM.from_config(theirs)


def as_gpt(name: str, tensors: dict[str, torch.Tensor]) -> GPT:
    """A GPT of CONFIGS[name] that holds the reference's weights or gradients, all of them."""
    config, family, used = CONFIGS[name], FAMILIES[kind(name)], set()

    def part(tensor: Tensor, i: int = 0) -> np.ndarray:
        used.add(theirs := tensor.name.format(i=i))
        return tensor.to_ours(tensors[theirs].detach().numpy(), config)

    def fill(path, leaf):
        ours = leaf_name(path)
        tensor, layers = family.tensors[ours], range(config.n_layer)
        array = np.stack([part(tensor, i) for i in layers]) if "blocks." in ours else part(tensor)
        assert array.shape == leaf.shape
        return jnp.asarray(array)

    skeleton = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
    model = jax.tree_util.tree_map_with_path(fill, skeleton)
    assert used == tensors.keys()
    return model
