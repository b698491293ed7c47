"""The network: token ids in, logits out.

    model = GPT(GPTConfig(), key=jax.random.key(0))
    logits = model(tokens)                         # (B, T) int32 -> (B, T, V) float32

`gelu` + `bias` is GPT-2's architecture; `rope` + `rmsnorm` + `swiglu` without `bias` is Llama's. Parameters
have GPT-2's names, but queries, keys and values are separate. All files use these letters:

    B batch (of all devices)   T time (tokens in the context)   D n_embd   H heads   K key/value heads
    C head size (in nanoGPT, C is n_embd)   F MLP hidden   V vocabulary   L layers   A microbatches of a step
    S keys to read from (T, or the key/value cache's length)   P learned positions

Weights, softmax, rotations and the residual stream x are float32. Matrix products take operands rounded to
`Compute.dtype`, and return `Compute.result`, as norms do: by default both are bfloat16 on GPUs and TPUs.
Attention's scores and `GPT.logits` are float32. Tokens interact only through `attend(q, k, v, key)`:
layers/attention.py makes it for entire sequences, generation/cache.py for new tokens that follow cached ones.
"""

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from config.command_line import Count
from config.options import ModelShape, check_shape
from layers.attention import Attend, Positions, causal_attention
from layers.compute import Compute
from layers.dropout import DropoutKey, dropout, split_key
from layers.products import Linear, apply_each, embedding_lookup, product
from layers.stack import apply_blocks


@dataclass(frozen=True)
class GPTConfig(ModelShape):
    """A model's shape, whose fields config/options.py explains, and its precision. Raises ValueError."""

    vocab_size: Count = 50304
    eot: int | None = None  # starts a document; tokens do not read earlier ones. None: a row is one
    compute: Compute = Compute()

    def __post_init__(self):
        check_shape(self)

    @property
    def kv_heads(self) -> int:
        return self.n_kv_head or self.n_head

    @property
    def head_size(self) -> int:
        return self.head_dim or self.n_embd // self.n_head

    @property
    def hidden(self) -> int:
        """F: 4 D, or about 8/3 D for SwiGLU, which has three matrices."""
        default = 64 * math.ceil(8 * self.n_embd / 3 / 64) if self.mlp == "swiglu" else 4 * self.n_embd
        return self.n_hidden or default

    @property
    def residual_std(self) -> float:
        """The standard deviation of c_proj's initial weights, 0.02 / sqrt(2 L), as in nanoGPT."""
        return 0.02 / math.sqrt(2 * self.n_layer)

    def build(self, key: PRNGKeyArray) -> "GPT":
        """Make the model. The config in variants.py overrides this."""
        return GPT(self, key=key)


class Norm(eqx.Module):
    """LayerNorm, or RMSNorm (no mean, no bias), over the last axis: computed in float32, then cast."""

    weight: Float[Array, " D"]
    bias: Float[Array, " D"] | None
    center: bool = eqx.field(static=True)
    eps: float = eqx.field(static=True)
    dtype: str = eqx.field(static=True)

    def __init__(self, config: GPTConfig, size: int):
        self.center = config.norm == "layernorm"
        self.eps = config.norm_eps
        self.dtype = config.compute.result
        self.weight = jnp.ones(size)
        self.bias = jnp.zeros(size) if config.bias and self.center else None

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True) if self.center else y
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.eps) * self.weight
        return (y if self.bias is None else y + self.bias).astype(self.dtype)


class Attention(eqx.Module):
    """Each token reads from itself and from the tokens before it."""

    c_q: Linear  # D -> (H, C)
    c_k: Linear  # D -> (K, C)
    c_v: Linear  # D -> (K, C)
    c_proj: Linear  # H C -> D
    q_norm: Norm | None
    k_norm: Norm | None
    dropout: float = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        q_key, k_key, v_key, proj_key = jax.random.split(key, 4)
        D, H, K, C = config.n_embd, config.n_head, config.kv_heads, config.head_size
        self.c_q = Linear(config, D, H, C, bias=config.qkv_bias, key=q_key)
        self.c_k = Linear(config, D, K, C, bias=config.qkv_bias, key=k_key)
        self.c_v = Linear(config, D, K, C, bias=config.qkv_bias, key=v_key)
        self.c_proj = Linear(config, H * C, D, std=config.residual_std, key=proj_key)
        self.q_norm = Norm(config, C) if config.qk_norm else None
        self.k_norm = Norm(config, C) if config.qk_norm else None
        self.dropout = config.dropout

    def __call__(
        self, x: Float[Array, "B T D"], attend: Attend, key: DropoutKey = None
    ) -> Float[Array, "B T D"]:
        weights_key, output_key = split_key(key)
        q, k, v = apply_each([self.c_q, self.c_k, self.c_v], x)  # (B, T, H, C), (B, T, K, C) twice
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        y = attend(q, k, v, weights_key)  # (B, T, H, C), after rope, mask and softmax
        return dropout(self.c_proj(y.reshape(*x.shape[:2], -1)), self.dropout, output_key)

    def readers(self) -> list[Linear]:
        """Return the layers that read x. Training moves the norm's weight into them (layers/stack.py)."""
        return [self.c_q, self.c_k, self.c_v]


# `jax.checkpoint` keeps only the inputs for the backward pass: recomputing is faster than rereading.
ACTIVATIONS = {
    "gelu": jax.checkpoint(lambda x: jax.nn.gelu(x, approximate=True)),
    "gelu_erf": jax.checkpoint(lambda x: jax.nn.gelu(x, approximate=False)),
    "relu2": jax.checkpoint(lambda x: jnp.square(jax.nn.relu(x))),
    "swiglu": jax.checkpoint(lambda gate, x: jax.nn.silu(gate) * x),
}


class MLP(eqx.Module):
    """Linear layers around an activation: GELU (GPT-2's tanh form), squared ReLU or SwiGLU."""

    c_gate: Linear | None  # D -> F, for swiglu
    c_fc: Linear  # D -> F
    c_proj: Linear  # F -> D
    activation: str = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        gate_key, fc_key, proj_key = jax.random.split(key, 3)
        D, F = config.n_embd, config.hidden
        self.c_gate = Linear(config, D, F, key=gate_key) if config.mlp == "swiglu" else None
        self.c_fc = Linear(config, D, F, key=fc_key)
        self.c_proj = Linear(config, F, D, std=config.residual_std, key=proj_key)
        self.activation = config.mlp
        self.dropout = config.dropout

    def __call__(self, x: Float[Array, "B T D"], key: DropoutKey = None) -> Float[Array, "B T D"]:
        h = ACTIVATIONS[self.activation](*apply_each(self.readers(), x))  # (B, T, F)
        return dropout(self.c_proj(h), self.dropout, key)

    def readers(self) -> list[Linear]:
        return [self.c_fc] if self.c_gate is None else [self.c_gate, self.c_fc]


class Block(eqx.Module):
    """Attention, then an MLP: each reads a normalised copy of the residual stream x, and is added to x."""

    ln_1: Norm
    attn: Attention
    ln_2: Norm
    mlp: MLP

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        attn_key, mlp_key = jax.random.split(key)
        self.ln_1 = Norm(config, config.n_embd)
        self.attn = Attention(config, key=attn_key)
        self.ln_2 = Norm(config, config.n_embd)
        self.mlp = MLP(config, key=mlp_key)

    def __call__(
        self, x: Float[Array, "B T D"], attend: Attend, key: DropoutKey = None
    ) -> Float[Array, "B T D"]:
        attn_key, mlp_key = split_key(key)
        x = x + self.attn(self.ln_1(x), attend, attn_key)
        return x + self.mlp(self.ln_2(x), mlp_key)


class GPT(eqx.Module):
    """The language model. `blocks` is one Block whose every array has a leading layer axis L."""

    wte: Float[Array, "V D"]
    wpe: Float[Array, "P D"] | None  # P is block_size; None with rope
    blocks: Block
    ln_f: Norm
    lm_head: Float[Array, "V D"] | None  # None: wte is also the head
    config: GPTConfig = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        wte_key, wpe_key, blocks_key, head_key = jax.random.split(key, 4)
        V, D, L = config.vocab_size, config.n_embd, config.n_layer
        learned = config.position == "learned"
        self.wte = 0.02 * jax.random.normal(wte_key, (V, D))
        self.wpe = 0.02 * jax.random.normal(wpe_key, (config.block_size, D)) if learned else None
        # One block per key, their weights stacked on a first axis of L: PyTorch would have a ModuleList.
        self.blocks = eqx.filter_vmap(lambda key: Block(config, key=key))(jax.random.split(blocks_key, L))
        self.ln_f = Norm(config, D)
        self.lm_head = None if config.tie_embeddings else 0.02 * jax.random.normal(head_key, (V, D))
        self.config = config

    def __call__(self, tokens: Int[Array, "B T"], *, key: DropoutKey = None) -> Float[Array, "B T V"]:
        """Compute logits, float32. A `key` turns dropout on, as PyTorch's `model.train()` does."""
        return self.logits(self.features(tokens, key=key))

    def features(self, tokens: Int[Array, "B T"], *, key: DropoutKey = None) -> Float[Array, "B T D"]:
        """Compute everything except the head. The loss takes features, so that it never holds all logits."""
        embed_key, blocks_key = split_key(key)
        layer_keys = None if blocks_key is None else jax.random.split(blocks_key, self.config.n_layer)
        positions, attend = causal_attention(self.config, tokens)
        x = self.embed(tokens, positions, embed_key)
        # For each layer: x = block(x, attend, key).
        return self.ln_f(apply_blocks(self.blocks, x, attend, layer_keys, self.config.compute))

    def embed(
        self, tokens: Int[Array, "B T"], positions: Positions, key: DropoutKey = None
    ) -> Float[Array, "B T D"]:
        """Add token and position embeddings. Raises ValueError for more tokens than learned positions."""
        x = embedding_lookup(self.wte, tokens, self.config.compute.result)  # rounded, but stored as float32
        if self.wpe is not None:
            if (T := tokens.shape[1]) > len(self.wpe):  # JAX would clamp the indices silently
                raise ValueError(f"{T} tokens are more than block_size={len(self.wpe)} positions")
            x = x + self.wpe[positions]
        return dropout(x, self.config.dropout, key)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Compute logits, float32, from features."""
        return product("btd,vd->btv", x, self.head, self.config.compute.dtype)

    @property
    def head(self) -> Float[Array, "V D"]:
        return self.wte if self.lm_head is None else self.lm_head
