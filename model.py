"""The network and nothing else: token ids in, logits out.

    logits = GPT(config, key=key)(tokens)          # (B, T) int32 -> (B, T, V)

`gelu` + `bias` with the rest at its defaults is GPT-2; `rope` + `rmsnorm` + `swiglu` without `bias` is Llama.
Parameters have GPT-2's names. One legend holds in every file of the project:

    B batch   T time (tokens in the context)   D n_embd   H heads   K key/value heads   G = H / K
    C head size
    F MLP hidden   V vocabulary   L layers   S length of the key/value cache

Modules act on the last axes; the batch axis is written out, not made by `vmap`. Weights are float32; matrix
products take their operands in `GPTConfig.dtype`; norms, softmax and rotations are computed in float32.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model, and how it is computed. Raises ValueError for a shape that cannot be."""

    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_kv_head: int | None = None  # None: as many as n_head; fewer: grouped queries (arXiv:2305.13245)
    n_embd: int = 768
    n_hidden: int | None = None  # F; None: as many parameters as GPT-2's MLP has, see `hidden`
    position: Literal["learned", "rope"] = "learned"  # rope: arXiv:2104.09864
    rope_theta: float = 10000.0
    rope_scaling: float = 1.0  # how many times slower slow rotations turn: see `frequencies`
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # rmsnorm: arXiv:1910.07467
    norm_eps: float = 1e-5
    mlp: Literal["swiglu", "gelu"] = "swiglu"  # swiglu: arXiv:2002.05202
    bias: bool = False
    qk_norm: bool = False  # arXiv:2302.05442
    tie_embeddings: bool = True
    dropout: float = 0.0
    eot: int | None = None  # the end-of-text token, which begins a document; None: a row is one document
    # These change how the model is computed, not what it is.
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the operands of matrix products
    attention: Literal["einsum", "cudnn"] = "einsum"  # with dropout or eot, einsum is used
    unroll: int = 0  # layers unrolled in the scan over layers; 0: all
    remat: Literal["none", "block", "dots"] = "none"  # what is kept for the backward pass: see `remat`

    def __post_init__(self):
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd", "n_hidden"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value} must be 1 or more")
        if self.eot is not None and not 0 <= self.eot < self.vocab_size:
            raise ValueError(f"eot={self.eot} must be a token of the vocabulary, below {self.vocab_size}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be from 0 up to, but not including, 1")
        for name in ("rope_theta", "rope_scaling", "norm_eps"):
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"{name}={value} must be above 0")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}")
        if self.n_head % self.kv_heads:
            raise ValueError(f"n_head={self.n_head} must be a multiple of n_kv_head={self.kv_heads}")
        if self.position == "rope" and self.head_size % 2:
            raise ValueError(f"rope needs an even head size: n_embd / n_head is {self.head_size}")

    @property
    def kv_heads(self) -> int:
        return self.n_kv_head or self.n_head

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def hidden(self) -> int:
        """F. SwiGLU's three matrices at 8/3 D hold as many parameters as GELU's two at 4 D."""
        if self.n_hidden is not None:
            return self.n_hidden
        return 4 * self.n_embd if self.mlp == "gelu" else 64 * math.ceil(8 * self.n_embd / 3 / 64)

    def flops_per_token(self, T: int) -> int:
        """Floating-point operations per token of one training step on sequences of T tokens.

        A product of an (m, k) and a (k, n) matrix takes 2 m k n; the backward pass does each one twice, once
        for each operand. So a matrix of P parameters costs 6 P per token, and the two T x T products of a
        layer's attention cost 12 T D. Like nanoGPT and PaLM (arXiv:2204.02311, appendix B), this counts the
        causal half that a good kernel skips, and leaves out all that is not a matrix product.
        """
        D, F, kv_width = self.n_embd, self.hidden, self.kv_heads * self.head_size
        attention = 2 * D * D + 2 * D * kv_width
        mlp = (2 if self.mlp == "gelu" else 3) * D * F
        matrices = self.n_layer * (attention + mlp) + self.vocab_size * D
        return 6 * matrices + 12 * self.n_layer * T * D


class GPT(eqx.Module):
    """The language model. `blocks` is one Block whose every array has a leading layer axis L."""

    wte: Float[Array, "V D"]
    wpe: Float[Array, "T D"] | None
    blocks: "Block"
    ln_f: "Norm"
    lm_head: Float[Array, "V D"] | None  # None: wte serves as the head too
    config: GPTConfig = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        wte_key, wpe_key, blocks_key, head_key = jax.random.split(key, 4)
        V, D = config.vocab_size, config.n_embd
        self.wte = normal(wte_key, (V, D))
        self.wpe = normal(wpe_key, (config.block_size, D)) if config.position == "learned" else None
        self.blocks = eqx.filter_vmap(lambda key: Block(config, key=key))(
            jax.random.split(blocks_key, config.n_layer)
        )
        self.ln_f = Norm(config, D)
        self.lm_head = None if config.tie_embeddings else normal(head_key, (V, D))
        self.config = config

    def __call__(
        self, tokens: Int[Array, "B T"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "B T V"]:
        """Logits, float32. A `key` turns dropout on: give one in training, none otherwise."""
        return self.logits(self.features(tokens, key=key))

    def features(
        self, tokens: Int[Array, "B T"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "B T D"]:
        """What the head reads. The loss takes these, so as not to hold all the logits at once."""
        return self.ln_f(self.through(self.blocks, self.begin(tokens, key), tokens, key))

    def begin(self, tokens: Int[Array, "B T"], key: PRNGKeyArray | None) -> Float[Array, "B T D"]:
        """What the first block reads."""
        return dropout(self.embed(tokens, 0, self.first(tokens)), self.config.dropout, split(key)[0])

    def through(
        self,
        blocks: "Block",
        x: Float[Array, "B T D"],
        tokens: Int[Array, "B T"],
        key: PRNGKeyArray | None,
        start: int | Int[Array, ""] = 0,
    ) -> Float[Array, "B T D"]:
        """x after some of the blocks: those from layer `start` on, stacked. The key is that of `features`."""
        first, n = self.first(tokens), jax.tree.leaves(blocks)[0].shape[0]
        layer_keys = None
        if key is not None:
            layer_keys = jax.random.split(split(key)[1], self.config.n_layer)
            layer_keys = lax.dynamic_slice_in_dim(layer_keys, start, n)

        def layer(x, per_layer):
            block, key = per_layer
            return block(over_batch(x), first=first, key=key)

        unroll = min(self.config.unroll or n, n)
        x, _ = lax.scan(remat(layer, self.config, in_loop=unroll < n), x, (blocks, layer_keys), unroll=unroll)
        return x

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Logits, float32, of features."""
        return contract("btd,vd->btv", x, self.head, self.config.dtype, out=jnp.float32)

    def extend(
        self, tokens: Int[Array, "B T"], cache: "Cache", layers: list["Block"]
    ) -> tuple[Float[Array, "B T D"], "Cache"]:
        """Features of tokens that follow those in the cache, and the cache with theirs added.

        The caller sees to it that they fit, `cache.length` + T <= S, and takes the `layers()` apart before:
        doing it for each token would copy all the weights each time, and take as long as the token itself.
        All are read as one document, whatever `eot` is: one that begins with that token, or goes on.
        """
        x, kv = self.embed(tokens, cache.length), []
        for block, layer_kv in zip(layers, cache.kv, strict=True):
            x, layer_kv = block(x, kv=layer_kv, start=cache.length)
            kv.append(layer_kv)
        return self.ln_f(x), Cache(kv, cache.length + tokens.shape[1])

    def layers(self) -> list["Block"]:
        """Copies of the blocks, one by one."""
        return [jax.tree.map(itemgetter(i), self.blocks) for i in range(self.config.n_layer)]

    def embed(
        self, tokens: Int[Array, "B T"], start, first: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T D"]:
        """The residual stream of tokens at positions `start` and on, before the first block."""
        # Matrices may be stored in bfloat16 (training/lora.py); the residual stream begins in float32.
        x, T = self.wte[tokens].astype(jnp.float32), tokens.shape[1]
        if self.wpe is not None:
            if T > self.config.block_size:
                raise ValueError(f"{T} tokens are more than block_size={self.config.block_size} positions")
            if first is None:
                x = x + lax.dynamic_slice_in_dim(self.wpe, start, T)
            else:
                x = x + self.wpe[positions(T, start, first)]
        return x

    def first(self, tokens: Int[Array, "B T"]) -> Int[Array, "B T"] | None:
        """Where each token's document begins; None where a row is one document."""
        return None if self.config.eot is None else first_of_document(tokens, self.config.eot)

    @property
    def head(self) -> Float[Array, "V D"]:
        return self.wte if self.lm_head is None else self.lm_head


class Cache(NamedTuple):
    """Keys and values of the tokens so far, so that a new token costs one token's work."""

    kv: list[tuple[Float[Array, "B K S C"], Float[Array, "B K S C"]]]  # of each layer
    length: Int[Array, ""]  # how many of the S places are filled

    @classmethod
    def empty(cls, config: GPTConfig, batch_size: int) -> "Cache":
        """A cache for `batch_size` sequences of up to block_size tokens."""
        shape = (batch_size, config.kv_heads, config.block_size, config.head_size)
        kv = [(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype)) for _ in range(config.n_layer)]
        return cls(kv, jnp.zeros((), jnp.int32))


class Block(eqx.Module):
    """Attention and an MLP, each on a normalised copy of the residual stream x, and added to it."""

    ln_1: "Norm"
    attn: "CausalSelfAttention"
    ln_2: "Norm"
    mlp: "MLP"

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        attn_key, mlp_key = jax.random.split(key)
        self.ln_1 = Norm(config, config.n_embd)
        self.attn = CausalSelfAttention(config, key=attn_key)
        self.ln_2 = Norm(config, config.n_embd)
        self.mlp = MLP(config, key=mlp_key)

    def __call__(
        self, x: Float[Array, "B T D"], *, kv=None, start=0, first=None, key: PRNGKeyArray | None = None
    ):
        """x after the block, and this layer's keys and values with those of x added (None without `kv`)."""
        attn_key, mlp_key = split(key)
        y, kv = self.attn(self.ln_1(x), kv=kv, start=start, first=first, key=attn_key)
        x = x + y
        return x + self.mlp(self.ln_2(x), key=mlp_key), kv


class CausalSelfAttention(eqx.Module):
    """Each token reads from itself and the tokens before it, from the `first` of its document on if given."""

    c_attn: "Linear"  # D -> (K, G + 2, C): of each key/value head its G = H / K queries, its key, its value
    c_proj: "Linear"
    q_norm: "Norm | None"
    k_norm: "Norm | None"
    config: GPTConfig = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        attn_key, proj_key = jax.random.split(key)
        D, K, C = config.n_embd, config.kv_heads, config.head_size
        self.c_attn = Linear(config, D, K, config.n_head // K + 2, C, key=attn_key)
        self.c_proj = Linear(config, D, D, std=residual_std(config), key=proj_key)
        self.q_norm = Norm(config, C) if config.qk_norm else None
        self.k_norm = Norm(config, C) if config.qk_norm else None
        self.config = config

    def __call__(
        self, x: Float[Array, "B T D"], *, kv=None, start=0, first=None, key: PRNGKeyArray | None = None
    ):
        B, T, D = x.shape
        attn_key, residual_key = split(key)
        heads = self.c_attn(x).transpose(0, 2, 3, 1, 4)  # (B, K, G + 2, T, C)
        q, k, v = heads[:, :, :-2], heads[:, :, -2], heads[:, :, -1]  # (B, K, G, T, C), (B, K, T, C) twice
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.config.position == "rope":
            at, per_position = positions(T, start, first), frequencies(self.config)
            q, k = rotate(q, at, per_position), rotate(k, at, per_position)
        if kv is not None:
            k, v = kv = tuple(
                lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=2)
                for old, new in zip(kv, (k, v), strict=True)
            )  # (B, K, S, C) twice
        y = attention(q, k, v, start, self.config, attn_key, first)  # (B, K, G, T, C)
        y = self.c_proj(y.transpose(0, 3, 1, 2, 4).reshape(B, T, D))
        return dropout(y, self.config.dropout, residual_key), kv


class MLP(eqx.Module):
    """GELU (tanh form, as in GPT-2), or SwiGLU."""

    c_fc: "Linear"  # D -> F, or D -> (2, F): the gate and what it gates
    c_proj: "Linear"
    config: GPTConfig = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        fc_key, proj_key = jax.random.split(key)
        D, F = config.n_embd, config.hidden
        self.c_fc = Linear(config, D, *([F] if config.mlp == "gelu" else [2, F]), key=fc_key)
        self.c_proj = Linear(config, F, D, std=residual_std(config), key=proj_key)
        self.config = config

    def __call__(self, x: Float[Array, "B T D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "B T D"]:
        h = self.c_fc(x)  # (B, T, F), or (B, T, 2, F)
        if self.config.mlp == "gelu":
            h = jax.nn.gelu(h, approximate=True)
        else:
            h = jax.nn.silu(h[:, :, 0]) * h[:, :, 1]
        return dropout(self.c_proj(h), self.config.dropout, key)


class Norm(eqx.Module):
    """LayerNorm, or RMSNorm (no mean, no bias), over the last axis; computed in float32."""

    weight: Float[Array, " D"]
    bias: Float[Array, " D"] | None
    center: bool = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    def __init__(self, config: GPTConfig, size: int):
        self.eps = config.norm_eps
        self.center = config.norm == "layernorm"
        self.weight = jnp.ones(size)
        self.bias = jnp.zeros(size) if config.bias and self.center else None

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        y = x.astype(jnp.float32)
        if self.center:
            y = y - y.mean(-1, keepdims=True)
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.eps) * self.weight
        if self.bias is not None:
            y = y + self.bias
        return y.astype(x.dtype)


class Linear(eqx.Module):
    """x @ weight + bias. Weights are stored (in, out), as in GPT-2, but `out` may be several axes.

    Queries, keys and values, or the gate and what it gates, thus come of one product, and a device that has
    its share of the heads, or of F, has what belongs together.
    """

    weight: Float[Array, "i *o"]
    bias: Float[Array, "*o"] | None
    dtype: str = eqx.field(static=True)

    def __init__(self, config: GPTConfig, fan_in: int, *fan_out: int, std=0.02, key: PRNGKeyArray):
        self.weight = normal(key, (fan_in, *fan_out), std)
        self.bias = jnp.zeros(fan_out) if config.bias else None
        self.dtype = config.dtype

    def __call__(self, x: Float[Array, "B T i"]) -> Float[Array, "B T *o"]:
        y = checkpoint_name(matmul(x, self.weight, self.dtype), "product")
        return y if self.bias is None else y + self.bias.astype(y.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Float[Array, "B T i"], w: Float[Array, "i *o"], dtype: str) -> Float[Array, "B T *o"]:
    """x @ w, its operands in `dtype` and summed in float32; float32 out on a CPU, `dtype` out elsewhere.

    The gradients are written out because JAX's own are slow on CPUs: XLA makes a transposed copy of x for the
    weight gradient and fuses all that led to x into it. Contracting B and T as two axes avoids that, and is
    the form that XLA's CPU library takes for bfloat16. The weight gradient is summed in float32.
    """
    out = "fgh"[: w.ndim - 1]
    return contract(f"btd,d{out}->bt{out}", x, w, dtype)


def contract(subscripts: str, a: Array, b: Array, dtype: str, out=None) -> Array:
    """`einsum` of two arrays, operands in `dtype`, the sum in float32, the result in `out`."""
    # CPUs sum bfloat16 products in float32 anyway; rounding the result would cost them extra time.
    out = out or (jnp.float32 if jax.default_backend() == "cpu" else dtype)
    return jnp.einsum(subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=out)


def _matmul_forward(x, w, dtype):
    return matmul(x, w, dtype), (x, w)


def _matmul_backward(dtype, saved, dy):
    x, w = saved
    out = "fgh"[: w.ndim - 1]
    dx = contract(f"bt{out},d{out}->btd", dy, w, dtype).astype(x.dtype)
    dw = contract(f"btd,bt{out}->d{out}", x, dy, dtype, out=jnp.float32)
    return dx, dw


matmul.defvjp(_matmul_forward, _matmul_backward)


def attention(q, k, v, start, config: GPTConfig, key: PRNGKeyArray | None = None, first=None):
    """softmax(q k^T / sqrt(C)) v, where query i may read keys first[i], or else 0, to start + i.

    q is (B, K, G, T, C), with G queries to a key, k and v are (B, K, S, C), `first` is (B, T) or None;
    returns (B, K, G, T, C). With a `key`, the weights are dropped out. Without dropout, `first` or a cache,
    cuDNN's fused kernel may run, which never holds the T x T weights.
    """
    B, K, G, T, C = q.shape
    S = k.shape[2]
    plain = isinstance(start, int) and first is None and (key is None or config.dropout == 0)
    if plain and config.attention == "cudnn":  # whose kernel takes (B, T, H, C)
        q = q.transpose(0, 3, 1, 2, 4).reshape(B, T, K * G, C)
        q, k, v = (x.astype(config.dtype) for x in (q, k.swapaxes(1, 2), v.swapaxes(1, 2)))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        return y.reshape(B, T, K, G, C).transpose(0, 2, 3, 1, 4)
    scores = contract("bkgtc,bksc->bkgts", q, k, config.dtype, out=jnp.float32) / math.sqrt(C)
    readable = jnp.arange(S) <= start + jnp.arange(T)[:, None]  # (T, S)
    if first is not None:
        readable &= jnp.arange(S) >= first[:, None, None, :, None]  # (B, 1, 1, T, S)
    weights = jax.nn.softmax(jnp.where(readable, scores, -jnp.inf))
    weights = dropout(weights, config.dropout, key)
    return contract("bkgts,bksc->bkgtc", weights, v, config.dtype)


def first_of_document(tokens: Int[Array, "B T"], eot: int) -> Int[Array, "B T"]:
    """Where each token's document begins: at the last `eot` up to it, or else with the row.

    So a document in a packed row reads what it would in a row of its own, and as a sample sees it whose
    prompt is the end-of-text token.
    """
    return lax.cummax(jnp.where(tokens == eot, jnp.arange(tokens.shape[1]), 0), axis=1)


def positions(T: int, start, first: Int[Array, "B T"] | None) -> Int[Array, "_ T"]:
    """Of T tokens from `start` on; one row for all, or (B, T), counted from the first of each document."""
    at = start + jnp.arange(T)[None]
    return at if first is None else at - first


def frequencies(config: GPTConfig) -> Float[Array, " half"]:
    """Radians per position by which each pair of components turns: 1, and ever less.

    `rope_scaling` other than 1 is Llama 3's way to longer contexts: what turns less than once in the 8192
    tokens it was first trained on is so many times slower, what turns more than four times there stays, and
    in between it goes from one to the other (arXiv:2407.21783; transformers' rope_type "llama3").
    """
    C = config.head_size
    turning = config.rope_theta ** (-jnp.arange(0, C, 2) / C)
    stays = jnp.clip((turning * 8192 / (2 * math.pi) - 1) / (4 - 1), 0, 1)
    return turning if config.rope_scaling == 1 else turning * (stays + (1 - stays) / config.rope_scaling)


def rotate(
    x: Float[Array, "B *heads T C"], at: Int[Array, "_ T"], per_position: Float[Array, " half"]
) -> Float[Array, "B *heads T C"]:
    """Rotary embedding of positions `at`, in Llama's layout: component i turns with component i + C/2."""
    angles = jnp.expand_dims(at[..., None] * per_position, range(1, x.ndim - 2))  # (1 or B, 1..., T, C/2)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def dropout(x: Float[Array, "..."], rate: float, key: PRNGKeyArray | None) -> Float[Array, "..."]:
    """x with each element zeroed with probability `rate` and the rest scaled up; x itself without a key.

    One 32-bit random number decides for two elements, which makes the baby GPT's step 10% faster on a CPU;
    the rate is rounded to a multiple of 2^-16 for it.
    """
    if key is None or rate == 0.0:
        return x
    bits = jax.random.bits(key, (*x.shape[:-1], -(-x.shape[-1] // 2)), jnp.uint32)
    bits = lax.bitcast_convert_type(bits, jnp.uint16).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    dropped = min(round(rate * 2**16), 2**16 - 1)
    return jnp.where(bits >= dropped, x * (2**16 / (2**16 - dropped)), 0).astype(x.dtype)


def dotted(path) -> str:
    """The name of an array in a tree, as in blocks.attn.c_attn.weight."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def remat(layer: Callable, config: GPTConfig, in_loop: bool) -> Callable:
    """`layer`, that keeps less for the backward pass, which computes the rest again (arXiv:1604.06174).

    "block" keeps the residual stream between blocks. "dots" keeps what the linear layers give as well, so
    that little but attention's weights and the cheap operations between products is computed twice.
    """
    if config.remat == "none":
        return layer
    saved = {"block": (), "dots": ("product",)}[config.remat]
    # A loop over layers keeps the two passes apart by itself; unrolled, the compiler would merge them again.
    policy = jax.checkpoint_policies.save_only_these_names(*saved)
    return jax.checkpoint(layer, policy=policy, prevent_cse=not in_loop)


def over_batch(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """x with its batch axis cut along the axes `data` and `fsdp` of the device mesh, where there is one.

    Said of the residual stream in each layer, this has the compiler gather the weights of a layer, and not
    the activations, wherever the weights are cut along `fsdp`.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return lax.with_sharding_constraint(x, PartitionSpec(("data", "fsdp")))


def split(key: PRNGKeyArray | None) -> Shaped[PRNGKeyArray, "2"] | tuple[None, None]:
    """Two keys from one. Without a key there is no dropout, anywhere below."""
    return (None, None) if key is None else jax.random.split(key)


def normal(key: PRNGKeyArray, shape: tuple[int, ...], std: float = 0.02) -> Float[Array, "..."]:
    """GPT-2's initialisation."""
    return std * jax.random.normal(key, shape)


def residual_std(config: GPTConfig) -> float:
    """Of the 2 L projections that add to the residual stream: so that their sum does not grow with depth."""
    return 0.02 / math.sqrt(2 * config.n_layer)
