"""The network, all of its mathematics: token ids in, logits and loss out. It imports no file of ours.

    model = GPT(GPTConfig(), key=jax.random.key(0))
    logits = model(tokens)                         # (B, T) int32 -> (B, T, V) float32
    loss = model.loss(tokens, targets)             # nats per token

`gelu` + `bias` is GPT-2's architecture; `rope` + `rmsnorm` + `swiglu` without `bias` is Llama's. Parameters
have GPT-2's names, but queries, keys and values are separate. All files use these letters:

    B batch (of all devices)   T time (tokens in the context)   D n_embd   H heads   K key/value heads
    C head size (in nanoGPT, C is n_embd)   F MLP hidden   V vocabulary   L layers   A microbatches of a step
    S keys to attend to (T, or the key/value cache's length)   P learned positions   G = H / K

A model is a shape and float32 arrays, and trains as it stands here. `faster` of fast.py puts other classes
around the same arrays. Their products may return bfloat16: hence some conversions below. Norms, softmax and
rotations are always computed in float32, and the residual stream x is float32.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

Tokens = Int[Array, "B T"]
Stream = Float[Array, "B T D"]  # the residual stream, or an array of its shape
Queries = Float[Array, "B H T C"]
Keys = Float[Array, "B K S C"]  # or values
Mask = Bool[Array, "_ T S"]  # True: the query attends to the key. _ is B, or 1 for all rows
Positions = Int[Array | np.ndarray, "_ T"]
# One key for the batch, or one per row: a row's dropout then ignores the other rows. None: no dropout.
DropoutKey = Shaped[PRNGKeyArray, "*B"] | None
LayerKeys = Shaped[PRNGKeyArray, "L *B"] | None
# attend(q, k, v, key) rotates q and k, and calls `attention`. The model makes one for all its blocks.
# generation/decode.py makes another, which remembers keys and values.
Attend = Callable[..., Queries]


@dataclass(frozen=True)
class GPTConfig:
    """A model's shape. Raises ValueError for fields that do not fit together."""

    block_size: int = 1024  # tokens per sequence
    vocab_size: int = 50304  # tokens it knows: GPT-2's 50257, rounded up to a multiple of 64
    n_layer: int = 12  # blocks
    n_head: int = 12  # attention heads
    n_kv_head: int | None = None  # key/value heads, shared by groups of query heads; None: n_head
    n_embd: int = 768  # width of the residual stream
    head_dim: int | None = None  # width of a head; None: n_embd / n_head
    n_hidden: int | None = None  # width of the MLP; None: 4 n_embd, for swiglu 8/3 n_embd
    position: Literal["learned", "rope"] = "learned"  # learned embeddings, or rotary (arXiv:2104.09864)
    rope_theta: float = 10000.0  # base of the rotary frequencies
    rope_scaling: float = 1.0  # Llama 3's factor for longer contexts; 1: none
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # normalisation before attention, MLP and head
    norm_eps: float = 1e-5  # added to the mean square before its root is taken
    mlp: Literal["swiglu", "gelu", "gelu_erf", "relu2"] = "swiglu"  # gelu: GPT-2's; gelu_erf: nanoGPT's
    bias: bool = False  # biases in the linear layers and layernorms
    qkv_bias: bool = False  # biases of queries, keys and values alone, as in Qwen2
    qk_norm: bool = False  # normalise queries and keys (arXiv:2302.05442)
    window: int | None = None  # tokens that a token attends to, itself included, as in Mistral; None: all
    tie_embeddings: bool = True  # the head shares the token embedding's weights
    dropout: float = 0.0  # rate for embeddings, attention and residuals
    document_start: int | None = None  # the token that begins a document; attention does not cross it

    def __post_init__(self):
        if self.n_embd % self.n_head and not self.head_dim:
            raise ValueError(f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}")
        if self.n_head % self.kv_heads:
            raise ValueError(f"n_head={self.n_head} must be a multiple of n_kv_head={self.kv_heads}")
        if self.position == "rope" and self.head_size % 2:
            which = "head_dim" if self.head_dim else "n_embd / n_head"
            raise ValueError(f"rope needs an even head size: {which} is {self.head_size}")

    @property
    def kv_heads(self) -> int:
        return self.n_kv_head or self.n_head

    @property
    def head_size(self) -> int:
        return self.head_dim or self.n_embd // self.n_head

    @property
    def hidden(self) -> int:
        """F: by default 4 D. SwiGLU has three matrices, and so about 8/3 D, for as many weights."""
        default = 64 * math.ceil(8 * self.n_embd / 3 / 64) if self.mlp == "swiglu" else 4 * self.n_embd
        return self.n_hidden or default

    @property
    def residual_std(self) -> float:
        """The standard deviation of c_proj's initial weights, as in nanoGPT: x sums 2 L of their results."""
        return 0.02 / math.sqrt(2 * self.n_layer)

    def build(self, key: PRNGKeyArray) -> "GPT":
        """Make the model. The config of variants.py overrides this."""
        return GPT(self, key=key)


class Linear(eqx.Module):
    """x @ weight + bias. Weights are stored (in, out) as in GPT-2; `out` may be several axes, like (H, C)."""

    weight: Float[Array, "i *o"]
    bias: Float[Array, "*o"] | None

    def __init__(self, fan_in: int, *fan_out: int, bias: bool, std: float = 0.02, key: PRNGKeyArray):
        self.weight = std * jax.random.normal(key, (fan_in, *fan_out))
        self.bias = jnp.zeros(fan_out) if bias else None

    def __call__(self, x: Float[Array, "B T i"]) -> Float[Array, "B T *o"]:
        y = jnp.tensordot(x, self.weight, axes=1)  # x @ weight, where `out` may be several axes
        return y if self.bias is None else y + self.bias


class Norm(eqx.Module):
    """LayerNorm, or RMSNorm (no mean, no bias), over the last axis: computed in float32."""

    weight: Float[Array, " D"]
    bias: Float[Array, " D"] | None
    kind: Literal["layernorm", "rmsnorm"] = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    def __init__(self, config: GPTConfig, size: int):
        self.kind, self.eps = config.norm, config.norm_eps
        self.weight = jnp.ones(size)
        self.bias = jnp.zeros(size) if config.bias and self.kind == "layernorm" else None

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True) if self.kind == "layernorm" else y
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.eps) * self.weight
        return y if self.bias is None else y + self.bias


class Dropout(eqx.Module):
    """With a key, zero each element with probability `rate` and scale up the rest (arXiv:1207.0580)."""

    rate: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "..."], key: DropoutKey) -> Float[Array, "..."]:
        if key is None or self.rate == 0:
            return x
        return jax.vmap(self.drop)(x, key) if key.ndim else self.drop(x, key)

    def drop(self, x: Float[Array, "..."], key: PRNGKeyArray) -> Float[Array, "..."]:
        return jnp.where(jax.random.bernoulli(key, 1 - self.rate, x.shape), x / (1 - self.rate), 0)


def split_key(key: DropoutKey, n: int = 2):
    """Split a key into n, or the key of each row; no key gives n times None."""
    if key is None:
        return [None] * n
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):  # the older kind, of jax.random.PRNGKey
        key = jax.random.wrap_key_data(key)
    split = partial(jax.random.split, num=n)
    return jax.vmap(split, out_axes=1)(key) if key.ndim else split(key)


# Attention: how queries and keys know their positions, and what a token attends to


def rotation(config: GPTConfig, positions: Positions) -> Callable:
    """Return the function that rotates queries or keys by position (arXiv:2104.09864); a no-op without rope.

    The layout is Llama's: components i and i + C/2 of a head form a pair. Angles are float32.
    """
    if config.position != "rope":
        return lambda x: x
    inv_freq = inverse_frequencies(config.head_size, config.rope_theta, config.rope_scaling)
    angles = positions.astype(np.float32)[:, None, :, None] * inv_freq  # (_, 1, T, C / 2)
    # Where positions are known while tracing, NumPy makes the table a constant, the same on every device.
    xp = np if isinstance(angles, np.ndarray) else jnp
    cos, sin = xp.cos(angles), xp.sin(angles)

    def rotate(x):  # (B, heads, T, C)
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)

    return rotate


def inverse_frequencies(head_size: int, theta: float, scaling: float = 1.0) -> Float[np.ndarray, " half"]:
    """Return the radians per position by which each of the C/2 pairs turns.

    `scaling` is Llama 3.1's, for longer contexts (meta-llama/llama-models). A pair that turns less than once
    in 8192 tokens, the original context, turns `scaling` times slower. One that turns more than four times
    stays as it is. Between these, the two are mixed.
    """
    inv_freq = theta ** (-np.arange(0, head_size, 2) / head_size)
    turns = inv_freq * 8192 / (2 * math.pi)
    stays = np.clip((turns - 1) / (4 - 1), 0, 1)
    return (inv_freq * (stays + (1 - stays) / scaling)).astype(np.float32)


def document_positions(tokens: Tokens, start: int | None) -> tuple[Positions, Tokens | None]:
    """Return each token's position in its document, and where in the row that document begins.

    Without a token that starts documents, a row is one document: its positions are constants of the program.
    """
    indices = np.arange(tokens.shape[1], dtype=np.int32)[None]  # (1, T)
    if start is None:
        return indices, None
    starts = document_starts(tokens, start, indices)
    return indices - starts, starts


def document_starts(tokens: Tokens, start: int, indices: Positions, begun: Array | int = 0) -> Tokens:
    """Return where in the row each token's document begins: at the last `start`; before any, at `begun`."""
    return lax.cummax(jnp.where(tokens == start, indices, begun), axis=1)


def causal_mask(indices: Positions, S: int, window: int | None, starts: Tokens | None = None) -> Mask:
    """Return which of S keys the query at each index attends to: from `starts` to itself, in its window."""
    indices, keys = indices[:, :, None], jnp.arange(S)
    mask = keys <= indices
    if window is not None:
        mask &= keys > indices - window
    if starts is not None:
        mask &= keys >= starts[:, :, None]
    return mask


def attention(
    q: Queries, k: Keys, v: Keys, mask: Mask, dropout: Callable | None = None, key: DropoutKey = None
) -> Queries:
    """Compute softmax(q k^T / sqrt(C)) v over the keys that the mask allows, with dropout of the softmax."""
    (B, H, T, C), K = q.shape, k.shape[1]
    q = q.reshape(B, K, H // K, T, C)  # G query heads share a key/value head (arXiv:2305.13245)
    scores = jnp.einsum("bkgtc,bksc->bkgts", q, k, preferred_element_type=jnp.float32) / math.sqrt(C)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf))  # (B, K, G, T, S)
    weights = weights if dropout is None else dropout(weights, key)
    return jnp.einsum("bkgts,bksc->bkgtc", weights.astype(v.dtype), v).reshape(B, H, T, -1)


class Attention(eqx.Module):
    """Each token attends to itself and to the tokens before it."""

    c_q: Linear  # D -> (H, C)
    c_k: Linear  # D -> (K, C)
    c_v: Linear  # D -> (K, C)
    c_proj: Linear  # H C -> D
    q_norm: Norm | None
    k_norm: Norm | None
    dropout: Dropout

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        q_key, k_key, v_key, proj_key = jax.random.split(key, 4)
        D, H, K, C = config.n_embd, config.n_head, config.kv_heads, config.head_size
        bias = config.bias or config.qkv_bias
        self.c_q = Linear(D, H, C, bias=bias, key=q_key)
        self.c_k = Linear(D, K, C, bias=bias, key=k_key)
        self.c_v = Linear(D, K, C, bias=bias, key=v_key)
        self.c_proj = Linear(H * C, D, bias=config.bias, std=config.residual_std, key=proj_key)
        self.q_norm = Norm(config, C) if config.qk_norm else None
        self.k_norm = Norm(config, C) if config.qk_norm else None
        self.dropout = Dropout(config.dropout)

    def __call__(self, x: Stream, attend: Attend, key: DropoutKey = None) -> Stream:
        weights_key, output_key = split_key(key)
        q, k, v = self.c_q(x), self.c_k(x), self.c_v(x)  # (B, T, H, C), (B, T, K, C) twice
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (heads.swapaxes(1, 2) for heads in (q, k, v))  # (B, heads, T, C)
        y = attend(q, k, v, weights_key).swapaxes(1, 2)  # (B, T, H, C), after rope, mask and softmax
        return self.dropout(self.c_proj(y.reshape(*x.shape[:2], -1)), output_key)  # (B, T, D)


# Checkpointed: computing them again in the backward pass is faster than reading several (B, T, F) arrays.
ACTIVATIONS = {
    "gelu": jax.checkpoint(lambda x: jax.nn.gelu(x, approximate=True)),
    "gelu_erf": jax.checkpoint(lambda x: jax.nn.gelu(x, approximate=False)),
    "relu2": jax.checkpoint(lambda x: jnp.square(jax.nn.relu(x))),
    "swiglu": jax.checkpoint(lambda gate, x: jax.nn.silu(gate) * x),
}


class MLP(eqx.Module):
    """Linear layers around an activation: GELU (GPT-2's tanh form, or exact), squared ReLU or SwiGLU."""

    c_gate: Linear | None  # D -> F, for swiglu
    c_fc: Linear  # D -> F
    c_proj: Linear  # F -> D
    activation: str = eqx.field(static=True)
    dropout: Dropout

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        gate_key, fc_key, proj_key = jax.random.split(key, 3)
        D, F, bias = config.n_embd, config.hidden, config.bias
        self.c_gate = Linear(D, F, bias=bias, key=gate_key) if config.mlp == "swiglu" else None
        self.c_fc = Linear(D, F, bias=bias, key=fc_key)
        self.c_proj = Linear(F, D, bias=bias, std=config.residual_std, key=proj_key)
        self.activation = config.mlp
        self.dropout = Dropout(config.dropout)

    def __call__(self, x: Stream, key: DropoutKey = None) -> Stream:
        h = [self.c_fc(x)] if self.c_gate is None else [self.c_gate(x), self.c_fc(x)]
        return self.dropout(self.c_proj(ACTIVATIONS[self.activation](*h)), key)  # (B, T, F) -> (B, T, D)


class Block(eqx.Module):
    """Attention, then an MLP. Each reads a normalised copy of the residual stream x, and adds to x."""

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

    def __call__(self, x: Stream, attend: Attend, key: DropoutKey = None) -> Stream:
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
    dropout: Dropout
    config: GPTConfig = eqx.field(static=True)

    def __init__(self, config: GPTConfig, *, key: PRNGKeyArray):
        wte_key, wpe_key, blocks_key, head_key = jax.random.split(key, 4)
        V, D, L = config.vocab_size, config.n_embd, config.n_layer
        learned = config.position == "learned"
        self.wte = 0.02 * jax.random.normal(wte_key, (V, D))
        self.wpe = 0.02 * jax.random.normal(wpe_key, (config.block_size, D)) if learned else None
        # One block per key, their weights stacked on a first axis of L, where PyTorch has a ModuleList.
        self.blocks = eqx.filter_vmap(lambda key: Block(config, key=key))(jax.random.split(blocks_key, L))
        self.ln_f = Norm(config, D)
        self.lm_head = None if config.tie_embeddings else 0.02 * jax.random.normal(head_key, (V, D))
        self.dropout = Dropout(config.dropout)
        self.config = config

    def __call__(self, tokens: Tokens, *, key: DropoutKey = None) -> Float[Array, "B T V"]:
        """Compute logits, float32. A `key` turns dropout on, as PyTorch's `model.train()` does."""
        return self.logits(self.features(tokens, key=key))

    def loss(self, tokens: Tokens, targets: Tokens, *, key: DropoutKey = None) -> Float[Array, ""]:
        """Compute the mean cross entropy of the targets, the next tokens; those below 0 do not count."""
        return self.mean_nats(self.features(tokens, key=key), targets)

    def features(self, tokens: Tokens, *, key: DropoutKey = None) -> Stream:
        """Compute everything except the head."""
        embed_key, blocks_key = split_key(key)
        layer_keys = None if blocks_key is None else split_key(blocks_key, self.config.n_layer)
        positions, attend = self.causal_attention(tokens)
        x = self.embed(tokens, positions, embed_key)
        return self.ln_f(self.apply_blocks(x, attend, layer_keys))

    def embed(self, tokens: Tokens, positions: Positions, key: DropoutKey = None) -> Stream:
        """Add token and position embeddings. Raises ValueError for more tokens than learned positions."""
        x = self.lookup(tokens)
        if self.wpe is not None:
            if (T := tokens.shape[1]) > len(self.wpe):  # JAX would clamp the indices silently
                raise ValueError(f"{T} tokens are more than block_size={len(self.wpe)} positions")
            x = x + self.wpe[positions]
        return self.dropout(x, key)

    @property
    def head(self) -> Float[Array, "V D"]:
        return self.wte if self.lm_head is None else self.lm_head

    # The methods that fast.py overrides

    def causal_attention(self, tokens: Tokens) -> tuple[Positions, Attend]:
        """Return the tokens' positions in their documents, and the `attend` for entire rows.

        A token attends to its own document, up to itself: at most to the last `window` tokens.
        """
        config, T = self.config, tokens.shape[1]
        positions, starts = document_positions(tokens, config.document_start)
        rotate = rotation(config, positions)
        mask = causal_mask(np.arange(T)[None], T, config.window, starts)

        def attend(q, k, v, key=None):
            return attention(rotate(q), rotate(k), v, mask, self.dropout, key)

        return positions, attend

    def lookup(self, tokens: Tokens) -> Stream:
        return self.wte[tokens]

    def apply_blocks(self, x: Stream, attend: Attend, keys: LayerKeys = None) -> Stream:
        """Apply the blocks in turn: `scan` slices axis L of each array. Without keys, a block gets None."""

        def layer(x, block_and_key):
            block, key = block_and_key
            return block(x, attend, key), None

        return lax.scan(layer, x, (self.blocks, keys))[0]

    def logits(self, x: Stream) -> Float[Array, "B T V"]:
        """Compute logits, float32, from features."""
        return x @ self.head.T

    def nats(self, x: Stream, targets: Tokens) -> Float[Array, " B"]:
        """Return each row's cross entropy from features, summed over the targets that count."""
        return cross_entropy(self.logits(x), targets).sum(-1)

    def mean_nats(self, x: Stream, targets: Tokens) -> Float[Array, ""]:
        """Return the mean cross entropy, from features, over the targets that count; 0 without any."""
        return self.nats(x, targets).sum() / jnp.maximum((targets >= 0).sum(), 1)


def cross_entropy(logits: Float[Array, "B T V"], targets: Tokens) -> Float[Array, "B T"]:
    """Return -log softmax(logits)[target] of each token, in nats; 0 where the target is below 0."""
    log_probabilities = jax.nn.log_softmax(logits)  # (B, T, V)
    chosen = jnp.take_along_axis(log_probabilities, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return -jnp.where(targets >= 0, chosen, 0)


def leaf_name(path: tuple[Any, ...]) -> str:
    """Name an array by its path in a model, as in blocks.attn.c_q.weight, without `wrapped` (variants.py)."""
    return jax.tree_util.keystr(path, simple=True, separator=".").replace(".wrapped", "")
