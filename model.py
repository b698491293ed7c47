"""The network and nothing else: token ids in, logits out.

    model = GPT(GPTConfig(), key=jax.random.key(0))
    logits = model(tokens)                         # (B, T) int32 -> (B, T, V) float32

`gelu` + `bias` with the rest at its defaults is GPT-2; `rope` + `rmsnorm` + `swiglu` without `bias` is Llama.
Parameters have GPT-2's names, with queries, keys and values apart. One legend holds in every file:

    B batch   T time (tokens in the context)   D n_embd   H heads   K key/value heads   C head size
    F MLP hidden   V vocabulary   L layers   S keys to read from (T, or the key/value cache's length)

Modules write the batch axis out; no `vmap` makes it. Weights are float32. Matrix products take operands in
`GPTConfig.dtype`; norms, softmax and rotations are float32. What is done for speed stands in layers/.
"""

import math
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from layers.activation import gelu, relu2, swiglu
from layers.attention import fits, fused_attention
from layers.context import Context, context_of
from layers.dropout import dropout, keys_of_layers, split_key
from layers.embedding import look_up
from layers.fold import fold_norms
from layers.mask import causal_mask
from layers.mix import gate, mix
from layers.mup import head_ratio, width_ratio
from layers.products import contract, matmul, result_dtype
from layers.remat import remat
from layers.residual import shard_residual
from layers.rotary import rotate
from layers.shape import check_length, check_shape
from layers.softcap import softcap
from layers.tensor_parallel import apply_each

DropoutKey = PRNGKeyArray | None  # None: no dropout. Give a key in training, none otherwise


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model, and how it is computed. Raises ValueError for a shape that cannot be."""

    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_kv_head: int | None = None  # None: n_head; fewer: query heads share them in groups (arXiv:2305.13245)
    n_embd: int = 768
    n_hidden: int | None = None  # F; None: the MLP has as many parameters as GPT-2's, see `hidden`
    position: Literal["learned", "rope"] = "learned"  # rope: arXiv:2104.09864
    rope_theta: float = 10000.0
    rope_scaling: float = 1.0  # Llama 3's factor for longer contexts: see `inverse_frequencies`
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # rmsnorm: arXiv:1910.07467
    norm_eps: float = 1e-5
    mlp: Literal["swiglu", "gelu", "relu2"] = "swiglu"  # arXiv:2002.05202, 1606.08415, 2109.08668
    bias: bool = False
    qk_norm: bool = False  # normalise queries and keys (arXiv:2302.05442)
    window: int | None = None  # tokens that a token reads, itself the last; None: all up to it
    tie_embeddings: bool = True
    value_embeddings: bool = False  # tokens have values of their own, which every layer mixes in (layers/mix)
    residual_scalars: bool = False  # a block weighs the residual stream, and adds some of the first embedding
    attention_gate: bool = False  # a head's output is scaled by a gate, from the block's input
    mup_base_width: int = 0  # n_embd of the model whose learning rates are tuned, see `wider`; 0: no µP
    mup_base_n_head: int = 0  # n_head of that model; 0: as many as this one has
    logit_softcap: float = 0.0  # bounds the logits, as in Gemma 2 (arXiv:2408.00118); 0: no bound
    dropout: float = 0.0
    eot: int | None = None  # the end-of-text token, which begins a document; None: a row is one document
    # These change how the model is computed, not what it is.
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the operands of matrix products
    attention: Literal["einsum", "cudnn", "splash"] = "einsum"  # with dropout, einsum is used
    unroll: int = 0  # layers unrolled in the scan over layers; 0: all
    remat: Literal["none", "block", "dots"] = "none"  # what is kept for the backward pass: see layers/remat

    def __post_init__(self):
        check_shape(self)

    @property
    def kv_heads(self) -> int:
        return self.n_kv_head or self.n_head

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def hidden(self) -> int:
        """F: 4 D, or about 8/3 D for SwiGLU, whose three matrices then have the others' parameters."""
        default = 64 * math.ceil(8 * self.n_embd / 3 / 64) if self.mlp == "swiglu" else 4 * self.n_embd
        return self.n_hidden or default

    @property
    def wider(self) -> float:
        """How many times as wide as its base the model is, for µP (layers/mup.py); 1 without µP."""
        return width_ratio(self.n_embd, self.mup_base_width)

    @property
    def wider_heads(self) -> float:
        """How many times as wide its heads are."""
        return head_ratio(self)

    @property
    def residual_std(self) -> float:
        """The standard deviation of c_proj's first weights, 0.02 / sqrt(2 L), as in GPT-2."""
        return 0.02 / math.sqrt(2 * self.n_layer)


class Norm(eqx.Module):
    """LayerNorm, or RMSNorm (no mean, no bias), over the last axis, in float32, rounded for a product."""

    weight: Float[Array, " D"]
    bias: Float[Array, " D"] | None
    center: bool = eqx.field(static=True)
    eps: float = eqx.field(static=True)
    divisor: float = eqx.field(static=True)  # the result is divided by this, for µP
    dtype: str = eqx.field(static=True)

    def __init__(self, config: GPTConfig, size: int, divisor: float = 1.0):
        self.center, self.eps, self.dtype = config.norm == "layernorm", config.norm_eps, config.dtype
        self.divisor = divisor
        self.weight = jnp.ones(size)
        self.bias = jnp.zeros(size) if config.bias and self.center else None

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True) if self.center else y
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.eps) * self.weight
        return ((y if self.bias is None else y + self.bias) / self.divisor).astype(result_dtype(self.dtype))


class Linear(eqx.Module):
    """x @ weight + bias. Weights are stored (in, out), as in GPT-2; `out` may be several axes, as (H, C)."""

    weight: Float[Array, "i *o"]
    bias: Float[Array, "*o"] | None
    dtype: str = eqx.field(static=True)

    def __init__(self, config: GPTConfig, fan_in: int, *fan_out: int, std=0.02, key: PRNGKeyArray):
        self.weight = std / math.sqrt(config.wider) * jax.random.normal(key, (fan_in, *fan_out))
        self.bias = jnp.zeros(fan_out) if config.bias else None
        self.dtype = config.dtype

    def __call__(self, x: Float[Array, "B T i"]) -> Float[Array, "B T *o"]:
        y = matmul(x, self.weight, self.dtype)
        y = checkpoint_name(y, "linear")  # remat="dots" keeps what has this name for the backward pass
        return y if self.bias is None else y + self.bias.astype(y.dtype)


def attention(
    q: Float[Array, "B H T C"],
    k: Float[Array, "B K S C"],
    v: Float[Array, "B K S C"],
    mask: Bool[Array, "_ T S"],
    config: GPTConfig,
    key: DropoutKey = None,
) -> Float[Array, "B H T C"]:
    """Compute softmax(q k^T / sqrt(C)) v, where each query reads the keys that the mask allows.

    H / K query heads share a key/value head. A `key` turns the weights' dropout on.
    """
    (B, H, T, C), K = q.shape, k.shape[1]
    q = q.reshape(B, K, H // K, T, C)
    scores = contract("bkgtc,bksc->bkgts", q, k, config.dtype, out=jnp.float32) / math.sqrt(C)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf))  # (B, K, H / K, T, S)
    weights = dropout(weights, config.dropout, key)
    return contract("bkgts,bksc->bkgtc", weights, v, config.dtype).reshape(B, H, T, C)


class CausalSelfAttention(eqx.Module):
    """Each token reads from itself and from the tokens before it."""

    c_q: Linear  # D -> (H, C)
    c_k: Linear  # D -> (K, C)
    c_v: Linear  # D -> (K, C)
    c_proj: Linear  # H C -> D
    head_gate: Linear | None  # D -> H, for attention_gate; it starts as 0, which is a gate of 1
    value_mix: Float[Array, " 2"] | None  # weights of c_v's values and of the tokens' own
    q_norm: Norm | None
    k_norm: Norm | None
    config: GPTConfig = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        q_key, k_key, v_key, proj_key, gate_key = jax.random.split(key, 5)
        D, H, K, C = config.n_embd, config.n_head, config.kv_heads, config.head_size
        self.c_q = Linear(config, D, H, C, key=q_key)
        self.c_k = Linear(config, D, K, C, key=k_key)
        self.c_v = Linear(config, D, K, C, key=v_key)
        self.c_proj = Linear(config, H * C, D, std=config.residual_std, key=proj_key)
        self.head_gate = Linear(config, D, H, std=0.0, key=gate_key) if config.attention_gate else None
        self.value_mix = jnp.array([0.5, 0.5]) if config.value_embeddings else None
        self.q_norm, self.k_norm = (Norm(config, C) if config.qk_norm else None for _ in range(2))
        self.config = config

    def __call__(self, x: Float[Array, "B T D"], context: Context, key: DropoutKey = None):
        config, T, (weights_key, output_key) = self.config, x.shape[1], split_key(key)
        q, k, v, opening = self.heads(x, context)
        if fits(config.attention, T) and (key is None or config.dropout == 0):
            y = fused_attention(q, k, v, context.documents, config.attention, config.window, config.dtype)
        else:
            mask = causal_mask(jnp.arange(T)[None], T, config.window, context.documents)
            y = attention(q, k, v, mask, config, weights_key)
        return self.output(y, opening, output_key)

    def heads(self, x: Float[Array, "B T D"], context: Context) -> tuple[Array, Array, Array, Array | None]:
        """Compute queries (B, H, T, C), keys and values (B, K, T, C), and the gates' openings (B, H, T)."""
        layers = [layer for layer in (self.c_q, self.c_k, self.c_v, self.head_gate) if layer is not None]
        q, k, v, *openings = (y.swapaxes(1, 2) for y in apply_each(layers, x))
        v = mix(v, context.values, self.value_mix)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if context.rotary is not None:
            q, k = rotate(q, *context.rotary), rotate(k, *context.rotary)
        return q / math.sqrt(self.config.wider_heads), k, v, openings[0] if openings else None

    def output(self, y: Float[Array, "B H T C"], opening: Array | None, key: DropoutKey = None) -> Array:
        """Project what the heads have read, through their gates, back into the residual stream, (B, T, D)."""
        B, H, T, C = y.shape
        y = self.c_proj(gate(y, opening).swapaxes(1, 2).reshape(B, T, H * C))
        return dropout(y, self.config.dropout, key)


class MLP(eqx.Module):
    """GELU (the tanh form, as in GPT-2), the square of ReLU, or SwiGLU."""

    c_gate: Linear | None  # D -> F, for swiglu
    c_fc: Linear  # D -> F
    c_proj: Linear  # F -> D
    config: GPTConfig = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        gate_key, fc_key, proj_key = jax.random.split(key, 3)
        D, F = config.n_embd, config.hidden
        self.c_gate = Linear(config, D, F, key=gate_key) if config.mlp == "swiglu" else None
        self.c_fc = Linear(config, D, F, key=fc_key)
        self.c_proj = Linear(config, F, D, std=config.residual_std, key=proj_key)
        self.config = config

    def __call__(self, x: Float[Array, "B T D"], key: DropoutKey = None) -> Float[Array, "B T D"]:
        if self.c_gate is None:
            h = (gelu if self.config.mlp == "gelu" else relu2)(self.c_fc(x))  # (B, T, F)
        else:
            h = swiglu(*apply_each([self.c_gate, self.c_fc], x))
        return dropout(self.c_proj(h), self.config.dropout, key)


class Block(eqx.Module):
    """Attention and an MLP, each on a normalised copy of the residual stream x, and added to it."""

    ln_1: Norm
    attn: CausalSelfAttention
    ln_2: Norm
    mlp: MLP
    stream_mix: Float[Array, " 2"] | None  # weights of x and of the first embedding

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        attn_key, mlp_key = jax.random.split(key)
        self.ln_1 = Norm(config, config.n_embd)
        self.attn = CausalSelfAttention(config, key=attn_key)
        self.ln_2 = Norm(config, config.n_embd)
        self.mlp = MLP(config, key=mlp_key)
        self.stream_mix = jnp.array([1.0, 0.0]) if config.residual_scalars else None

    def __call__(self, x: Float[Array, "B T D"], context: Context, key: DropoutKey = None):
        attn_key, mlp_key = split_key(key)
        x = mix(x, context.first, self.stream_mix)
        x = x + self.attn(self.ln_1(x), context, attn_key)
        return x + self.mlp(self.ln_2(x), mlp_key)


class GPT(eqx.Module):
    """The language model. `blocks` is one Block whose every array has a leading layer axis L."""

    wte: Float[Array, "V D"]
    wpe: Float[Array, "P D"] | None  # P is block_size; None with rope
    wve: Float[Array, "V KC"] | None  # the tokens' own values, for value_embeddings
    blocks: Block
    ln_f: Norm
    lm_head: Float[Array, "V D"] | None  # None: wte serves as the head too
    config: GPTConfig = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        wte_key, wpe_key, blocks_key, head_key = jax.random.split(key, 4)
        V, D, L, KC = config.vocab_size, config.n_embd, config.n_layer, config.kv_heads * config.head_size
        learned, valued = config.position == "learned", config.value_embeddings
        self.wte = 0.02 * jax.random.normal(wte_key, (V, D))
        self.wpe = 0.02 * jax.random.normal(wpe_key, (config.block_size, D)) if learned else None
        self.wve = 0.02 * jax.random.normal(jax.random.fold_in(key, 4), (V, KC)) if valued else None
        self.blocks = eqx.filter_vmap(lambda key: Block(config, key=key))(jax.random.split(blocks_key, L))
        self.ln_f = Norm(config, D, divisor=config.wider)
        self.lm_head = None if config.tie_embeddings else 0.02 * jax.random.normal(head_key, (V, D))
        self.config = config

    def __call__(self, tokens: Int[Array, "B T"], *, key: DropoutKey = None) -> Float[Array, "B T V"]:
        """Compute logits, float32."""
        return self.logits(self.features(tokens, key=key))

    def features(self, tokens: Int[Array, "B T"], *, key: DropoutKey = None) -> Float[Array, "B T D"]:
        """Compute all but the head. The loss takes features, so as not to hold all the logits at once."""
        context = self.context(tokens, key=key)
        x = self.embed(tokens, context, key=key)
        return self.ln_f(self.apply_blocks(self.blocks, x, context, key=key))

    def context(self, tokens: Int[Array, "B T"], places=None, begun=0, *, key: DropoutKey = None) -> Context:
        """Find what blocks read besides the stream. `places` and `begun` are of tokens that follow others."""
        config = self.config
        check_length(tokens.shape[1], config)
        context = context_of(tokens, config, places, begun)
        if self.wve is not None:
            values = look_up(self.wve, tokens, config.dtype).reshape(*tokens.shape, config.kv_heads, -1)
            context = context._replace(values=values.swapaxes(1, 2))  # (B, K, T, C)
        first = self.embed(tokens, context, key=key) if config.residual_scalars else None
        return context._replace(first=first)

    def embed(self, tokens: Int[Array, "B T"], context: Context, *, key: DropoutKey = None):
        """Token and position embeddings, after dropout. Pass the same key as to `features`."""
        if context.first is not None:
            return context.first
        x = look_up(self.wte, tokens, self.config.dtype)
        if self.wpe is not None:
            x = x + self.wpe[context.positions]
        return dropout(x, self.config.dropout, split_key(key)[0])

    def apply_blocks(
        self, blocks: Block, x: Float[Array, "B T D"], context: Context, first_layer=0, key: DropoutKey = None
    ) -> Float[Array, "B T D"]:
        """Apply some of the blocks, stacked, of which the first is layer `first_layer` of the model.

        Pass the same key as to `features`: dropout keys follow the absolute layer, so a pipeline's stages
        draw the masks that one device draws.
        """
        n = jax.tree.leaves(blocks)[0].shape[0]
        layer_keys = keys_of_layers(split_key(key)[1], self.config.n_layer, first_layer, n)

        def layer(x, block_and_key):
            block, key = block_and_key
            return fold_norms(block)(shard_residual(x), context, key), None

        unroll = min(self.config.unroll or n, n)
        rematerialised = remat(layer, self.config.remat, in_loop=unroll < n)
        return lax.scan(rematerialised, x, (blocks, layer_keys), unroll=unroll)[0]

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Compute logits, float32, from features."""
        logits = contract("btd,vd->btv", x, self.head, self.config.dtype, out=jnp.float32)
        return softcap(logits, self.config.logit_softcap)

    @property
    def head(self) -> Float[Array, "V D"]:
        return self.wte if self.lm_head is None else self.lm_head
