"""What `model.py` promises: it computes GPT-2 and Llama, looks only back, and starts as GPT-2 does."""

import math
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from generation.cache import Cache
from layers.dropout import dropout
from model import GPT, MLP, CausalSelfAttention, GPTConfig, Norm, attention
from tests.reference import CONFIGS, as_gpt, random_reference

ROOT = Path(__file__).resolve().parents[1]
TINY = GPTConfig(block_size=16, vocab_size=65, n_layer=2, n_head=4, n_embd=32)
GPT2 = GPTConfig(vocab_size=50257, mlp="gelu", bias=True)
LLAMA = dict(position="rope", norm="rmsnorm", n_kv_head=2, tie_embeddings=False)

# Float32 rounds each operation by up to u = 2^-24, and roundings add up like a random walk. A forward and a
# backward pass of three layers are about 100 operations in a row, the products among them sums of about 200
# terms: sqrt(100 * 200) u.
FLOAT32_ROUNDING = 1e-5


def random_tokens(config, B=2, T=None, seed=0):
    shape = (B, T or config.block_size)
    return jax.random.randint(jax.random.key(seed), shape, 0, config.vocab_size)


def large(config):
    """A model with random weights ten times those of a new one: attention is sharp, and logits spread."""
    random = np.random.default_rng(0)

    def fill(path, leaf):
        gain = ".ln_" in jax.tree_util.keystr(path) and path[-1].name == "weight"
        return jnp.asarray(gain + 0.2 * random.normal(size=leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, eqx.filter_eval_shape(GPT, config, key=jax.random.key(0)))


@jax.jit
def forward(model, tokens, key=None):
    return model(tokens, key=key)


def nll(logits, targets):
    """(B, T), the loss of each position."""
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]


@jax.jit
def train(model, tokens, targets, key=None):
    """(mean loss, logits), gradients."""

    def loss(model):
        logits = model(tokens, key=key)
        return nll(logits, targets).mean(), logits

    return jax.value_and_grad(loss, has_aux=True)(model)


def distance(a, b):
    """Of a from b, relative to b."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def named_leaves(model):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(model)}


# --- the same function as the reference ---


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients_are_those_of_transformers(name):
    reference = random_reference(name)
    model = as_gpt(name, dict(reference.named_parameters()))
    tokens, targets = random_tokens(model.config), random_tokens(model.config, seed=1)

    expected = reference(torch.tensor(np.array(tokens))).logits
    torch.nn.functional.cross_entropy(expected.mT, torch.tensor(np.array(targets)).long()).backward()
    expected = expected.detach().numpy()
    assert expected.std() > 1

    (_, logits), gradients = train(model, tokens, targets)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    expected = as_gpt(name, {name: parameter.grad for name, parameter in reference.named_parameters()})
    expected = named_leaves(expected)
    for leaf_name, gradient in named_leaves(gradients).items():
        assert distance(gradient, expected[leaf_name]) < FLOAT32_ROUNDING, leaf_name


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("position", ["learned", "rope"])
def test_attention_with_qk_norm_is_the_formula_head_by_head(position, norm):
    config = replace(TINY, n_kv_head=2, qk_norm=True, position=position, norm=norm, bias=True)
    layer = CausalSelfAttention(config, key=jax.random.key(0))
    gains = 1 + jax.random.normal(jax.random.key(1), (2, config.head_size))
    layer = eqx.tree_at(lambda layer: (layer.q_norm.weight, layer.k_norm.weight), layer, tuple(gains))
    layer = jax.tree.map(lambda leaf: 10 * leaf if leaf.ndim == 2 else leaf, layer)
    x = jax.random.normal(jax.random.key(2), (2, 7, config.n_embd))

    def normalised(head, gain):
        head = head - head.mean(-1, keepdims=True) if norm == "layernorm" else head
        return head / np.sqrt((head**2).mean(-1, keepdims=True) + 1e-5) * gain

    def turned(head):
        if position == "learned":
            return head
        C = config.head_size
        angles = np.outer(np.arange(7), 10000.0 ** (-2 * np.arange(C // 2) / C))
        turned = (head[..., : C // 2] + 1j * head[..., C // 2 :]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], -1)

    heads = np.tensordot(np.asarray(x, np.float64), np.asarray(layer.c_attn.weight), 1)  # (2, 7, 2, 4, 8)
    out = []
    for i in range(4):  # head i is the i % 2-th query of key i // 2
        q = turned(normalised(heads[:, :, i // 2, i % 2], np.asarray(gains[0])))
        k = turned(normalised(heads[:, :, i // 2, 2], np.asarray(gains[1])))
        scores = np.einsum("btc,bsc->bts", q, k) / np.sqrt(8)
        weights = np.exp(scores) * np.tri(7)
        out.append(weights / weights.sum(-1, keepdims=True) @ heads[:, :, i // 2, 3])
    expected = np.concatenate(out, -1) @ np.asarray(layer.c_proj.weight)
    assert distance(eqx.filter_jit(layer)(x)[0], expected) < FLOAT32_ROUNDING


def test_gelu_is_the_tanh_form():
    layer = MLP(replace(TINY, mlp="gelu"), key=jax.random.key(0))
    x = 20 * jax.random.normal(jax.random.key(1), (2, 5, 32))
    h = np.asarray(x, np.float64) @ np.asarray(layer.c_fc.weight)
    tanh_form = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    exact = 0.5 * h * (1 + np.vectorize(math.erf)(h / np.sqrt(2)))
    w = np.asarray(layer.c_proj.weight)
    assert distance(layer(x), tanh_form @ w) < FLOAT32_ROUNDING < distance(layer(x), exact @ w)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_norms_add_1e_5_to_the_variance(norm):
    layer = Norm(replace(TINY, norm=norm), 4)
    x = np.array([3, -1, 1, -3]) * 1e-3  # of mean 0 and variance 5e-6: as small as epsilon
    np.testing.assert_allclose(layer(jnp.asarray(x)), x / math.sqrt(5e-6 + 1e-5), rtol=1e-6)


# --- it looks only back ---


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_kv_head", [4, 2])
@pytest.mark.parametrize("position", ["learned", "rope"])
def test_no_position_depends_on_later_tokens(position, n_kv_head, dtype):
    T = 6
    config = replace(
        TINY, position=position, n_kv_head=n_kv_head, dtype=dtype, tie_embeddings=False, unroll=1
    )
    model = large(config)

    # Every token occurs once, so the gradient for its row of wte is that for one position's embedding.
    tokens, targets = jnp.arange(T)[None], jnp.arange(T)[None] + T
    by_embedding = jax.jit(
        jax.jacrev(lambda wte: nll(eqx.tree_at(lambda m: m.wte, model, wte)(tokens), targets)[0])
    )(model.wte)
    depends = (by_embedding[:, :T] != 0).any(-1)  # (loss at t, embedding at s)
    np.testing.assert_array_equal(depends, np.tri(T, dtype=bool))

    changed = tokens.at[0, 3:].add(7)
    same = (forward(model, tokens) == forward(model, changed)).all(-1)[0]
    np.testing.assert_array_equal(same, np.arange(T) < 3)


# --- initialisation and size ---


@pytest.mark.parametrize("V, D, B", [(65, 128, 32), (50304, 64, 2)])
@pytest.mark.parametrize("variant", [{}, LLAMA])
def test_a_new_model_knows_nothing(variant, V, D, B):
    # Logits are small at first, and the loss ln(V), as long as D is: they are products of D-vectors. A tied
    # head also favours the token it has just read; at V 65, D 384 the loss starts 3% above ln(V).
    config = GPTConfig(block_size=64, vocab_size=V, n_layer=2, n_head=4, n_embd=D, **variant)
    model = jax.jit(lambda key: GPT(config, key=key))(jax.random.key(0))
    logits = forward(model, random_tokens(config, B))
    loss = nll(logits, random_tokens(config, B, seed=1)).mean()
    assert loss == pytest.approx(math.log(V), rel=0.02)


@pytest.mark.parametrize("variant", [LLAMA, dict(mlp="gelu", bias=True)])
def test_weights_start_as_in_gpt2_and_every_layer_on_its_own(variant):
    config = GPTConfig(block_size=64, vocab_size=256, n_layer=4, n_head=4, n_embd=64, **variant)
    for name, leaf in named_leaves(GPT(config, key=jax.random.key(0))).items():
        leaf = np.asarray(leaf)
        if name.endswith(".bias"):
            assert (leaf == 0).all(), name
        elif "ln_" in name:
            assert (leaf == 1).all(), name
        else:
            std = 0.02 / math.sqrt(2 * 4) if "c_proj" in name else 0.02
            # Five standard errors of a mean and of a standard deviation.
            assert abs(leaf.mean()) < 5 * std / math.sqrt(leaf.size), name
            assert leaf.std() == pytest.approx(std, rel=5 / math.sqrt(2 * leaf.size)), name
            if "blocks" in name:
                correlation = np.corrcoef(leaf.reshape(4, -1)) - np.eye(4)
                assert abs(correlation).max() < 5 / math.sqrt(leaf[0].size), name


def test_the_key_decides_the_weights():
    new = jax.jit(lambda key: GPT(TINY, key=key))
    a, b, c = (new(jax.random.key(seed)) for seed in (0, 0, 1))
    assert eqx.tree_equal(a, b)
    assert not (a.wte == c.wte).any()
    assert not (a.blocks.mlp.c_fc.weight == c.blocks.mlp.c_fc.weight).any()


def parameters(config):
    shapes = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))  # allocates nothing
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    "L, H, D, published",
    [
        (12, 12, 768, 124_439_808),  # gpt2
        (24, 16, 1024, 354_823_168),  # gpt2-medium
        (36, 20, 1280, 774_030_080),  # gpt2-large
        (48, 25, 1600, 1_557_611_200),  # gpt2-xl
    ],
)
def test_gpt2s_sizes(L, H, D, published):
    config = replace(GPT2, n_layer=L, n_head=H, n_embd=D)
    assert parameters(config) == published
    assert parameters(config) == 50257 * D + 1024 * D + L * (12 * D**2 + 13 * D) + 2 * D


def test_nanogpts_sizes():
    config = replace(GPT2, vocab_size=50304, bias=False)
    wpe = 1024 * 768  # nanoGPT reports 123.59M, without wpe
    assert parameters(config) - wpe == 50304 * 768 + 12 * (12 * 768**2 + 2 * 768) + 768 == 123_587_328
    assert parameters(replace(config, mlp="swiglu")) == pytest.approx(124.4e6, rel=0.01)


@pytest.mark.parametrize("variant", [dict(mlp="gelu", bias=True), LLAMA])
def test_flops_are_those_xla_counts(variant):
    B, T = 2, 64
    config = GPTConfig(block_size=T, vocab_size=512, n_layer=2, n_head=4, n_embd=256, unroll=0, **variant)
    model = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)
    counted = train.lower(model, tokens, tokens).compile().cost_analysis()["flops"]
    # XLA adds one for each element of each elementwise operation (norms, softmax, activations), which is
    # O(D + H T + V) per token against O(D^2 + D V) in products: 1% here, and never less than nothing.
    # Unrolled, because it counts the body of a loop once.
    assert 1 < counted / (B * T * config.flops_per_token(T)) < 1.02


def test_flops_are_those_of_nanogpt():
    config = replace(GPT2, vocab_size=50304, bias=False)
    L, H, Q, T = 12, 12, 64, 1024
    N = parameters(config) - T * 768
    # nanoGPT counts the gains of the norms as if they were matrices: 19,200 of 124 million.
    assert config.flops_per_token(T) == 6 * (N - 25 * 768) + 12 * L * H * Q * T
    assert config.flops_per_token(T) == pytest.approx(6 * N + 12 * L * H * Q * T, rel=1e-3)


# --- the same result in other ways ---


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_the_cache_gives_what_the_whole_sequence_gives(position):
    model = large(replace(TINY, position=position, n_kv_head=2))
    tokens = random_tokens(model.config)
    layers = model.layers()
    extend = jax.jit(lambda tokens, cache: model.extend(tokens, cache, layers))
    cache, chunks = Cache.empty(model.config, 2), []
    for chunk in jnp.split(tokens, [5, 6, 7, 11], axis=1):
        features, cache = extend(chunk, cache)
        chunks.append(features)
    assert cache.length == 16
    expected = jax.jit(lambda tokens: model.features(tokens))(tokens)
    assert distance(jnp.concatenate(chunks, 1), expected) < FLOAT32_ROUNDING


def test_unrolling_the_layers_changes_nothing():
    tokens, targets = random_tokens(TINY), random_tokens(TINY, seed=1)
    config = replace(TINY, n_layer=3)
    (_, logits), gradients = train(large(config), tokens, targets)
    gradients = named_leaves(gradients)
    for unroll in (1, 2):
        (_, other_logits), other_gradients = train(large(replace(config, unroll=unroll)), tokens, targets)
        assert distance(other_logits, logits) < FLOAT32_ROUNDING
        for name, gradient in named_leaves(other_gradients).items():
            assert distance(gradient, gradients[name]) < FLOAT32_ROUNDING, name


@pytest.mark.parametrize("remat", ["block", "dots"])
@pytest.mark.parametrize("unroll", [0, 1])
def test_recomputing_changes_no_gradient_and_no_dropout(remat, unroll):
    config = replace(TINY, n_layer=3, dropout=0.2, bias=True, unroll=unroll)
    tokens, targets, key = random_tokens(TINY), random_tokens(TINY, seed=1), jax.random.key(0)
    (loss, _), gradients = train(large(config), tokens, targets, key)
    (other_loss, _), others = train(large(replace(config, remat=remat)), tokens, targets, key)
    assert distance(other_loss, loss) < FLOAT32_ROUNDING
    others = named_leaves(others)
    for name, gradient in named_leaves(gradients).items():
        assert distance(others[name], gradient) < FLOAT32_ROUNDING, name


@cache
def gradient_plan(remat, n_layer=3):
    """Bytes of temporaries, and FLOPs with those of one layer, of the features' gradient. B 8, T 64, D 64."""
    config = GPTConfig(block_size=64, n_layer=n_layer, n_head=4, n_embd=64, unroll=1, remat=remat)
    model = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32)
    compiled = (
        jax.jit(jax.grad(lambda model, tokens: model.features(tokens).sum())).lower(model, tokens).compile()
    )
    return compiled.memory_analysis().temp_size_in_bytes, compiled.cost_analysis()["flops"]


def test_what_each_layer_keeps_for_the_backward_pass():
    kept = {}
    for remat in ("none", "dots", "block"):
        (three, _), (six, _) = gradient_plan(remat, 3), gradient_plan(remat, 6)
        kept[remat] = (six - three) / 3 / (8 * 64 * 64 * 4)  # float32 arrays of (B, T, D)
    # The residual stream; with dots also q, k, v (3 D), attention's c_proj (D) and c_fc (2 F, F = 192 = 3 D).
    # What the MLP's c_proj gives is the next residual stream less this one: no gradient needs it. XLA keeps a
    # few numbers per token besides, of the norms, which round off.
    assert round(kept["block"], 1) == 1
    assert round(kept["dots"], 1) == 1 + 3 + 1 + 6 + 0.1
    assert kept["none"] > 2 * kept["dots"]


def test_what_is_computed_twice():
    none, dots, block = (gradient_plan(remat)[1] for remat in ("none", "dots", "block"))
    attention, linear = 2 * (2 * 8 * 64 * 64 * 64), 2 * 8 * 64 * 64 * (3 + 1 + 6) * 64
    # Norms, softmax and SiLU come on top: XLA counts about ten operations for each of the elements they
    # read, which are 4 T + 2 D + F per token.
    others = 10 * 8 * 64 * (4 * 64 + 2 * 64 + 192)
    assert attention <= dots - none <= attention + others
    assert attention + linear <= block - none <= attention + linear + others


def test_bfloat16_is_as_close_to_float32_as_8_bits_allow():
    tokens = random_tokens(TINY)
    logits = forward(large(replace(TINY, dtype="bfloat16")), tokens)
    assert logits.dtype == jnp.float32
    # A layer is six products in a row, the head one more. Each rounds two operands by up to 2^-8, half the
    # spacing of numbers with 8 bits, and the roundings add up like a random walk.
    most = math.sqrt(2 * (6 * TINY.n_layer + 1)) * 2**-8
    least = 2**-10  # the head's two roundings alone, at random, are this
    assert least < distance(logits, forward(large(TINY), tokens)) < most


# Not every bfloat16 product is implemented in XLA's CPU backend. Which are depends on the shape and on how
# the loop over layers is compiled.
@pytest.mark.parametrize(
    "mlp, tie_embeddings, unroll, B, T, V, H, C",
    [
        ("gelu", True, 0, 2, 7, 65, 3, 8),
        ("gelu", True, 1, 1, 1, 1000, 3, 24),
        ("gelu", False, 0, 1, 1, 65, 1, 8),
        ("gelu", False, 1, 3, 7, 1000, 3, 24),
        ("swiglu", True, 0, 1, 1, 1000, 3, 8),
        ("swiglu", True, 1, 2, 7, 65, 3, 24),
        ("swiglu", False, 0, 3, 7, 1000, 3, 8),
        ("swiglu", False, 1, 1, 1, 65, 3, 8),
    ],
)
def test_bfloat16_trains_at_odd_shapes(mlp, tie_embeddings, unroll, B, T, V, H, C):
    config = GPTConfig(
        block_size=T,
        vocab_size=V,
        n_layer=2,
        n_head=H,
        n_kv_head=1,
        n_embd=H * C,
        position="rope" if tie_embeddings else "learned",
        mlp=mlp,
        tie_embeddings=tie_embeddings,
        dtype="bfloat16",
        unroll=unroll,
    )
    model = large(config)
    tokens, targets = random_tokens(config, B, T), random_tokens(config, B, T, seed=1)
    (loss, _), gradients = train(model, tokens, targets)
    assert jnp.isfinite(loss)
    for name, gradient in named_leaves(gradients).items():
        assert gradient.dtype == jnp.float32, name
        assert jnp.isfinite(gradient).all(), name
        assert (gradient != 0).any(), name


# --- documents in a packed row ---


EOT = 64
PACKED = replace(TINY, eot=EOT, n_kv_head=2, unroll=1)
# Two rows: the end of a document and three more, one of them empty; and a row that begins with one.
LENGTHS = [[5, 7, 1, 3], [4, 12]]


def packed_tokens():
    """(2, 16), and the documents of each row: slices, of which all but row 0's first begin with EOT."""
    tokens = random_tokens(replace(TINY, vocab_size=EOT))
    ends = [np.cumsum(lengths) for lengths in LENGTHS]
    documents = [
        [slice(end - n, end) for end, n in zip(*row, strict=True)] for row in zip(ends, LENGTHS, strict=True)
    ]
    for row, slices in enumerate(documents):
        for document in slices[row == 0 :]:
            tokens = tokens.at[row, document.start].set(EOT)
    return tokens, documents


@pytest.mark.parametrize("position", ["learned", "rope"])
@pytest.mark.parametrize("remat", ["none", "block"])
def test_a_document_in_a_packed_row_is_as_if_alone(position, remat):
    model = large(replace(PACKED, position=position, remat=remat))
    tokens, documents = packed_tokens()
    packed = forward(model, tokens)
    alone = large(replace(model.config, eot=None))
    for row, slices in enumerate(documents):
        for document in slices:
            expected = forward(alone, tokens[row : row + 1, document])[0]
            assert distance(packed[row, document], expected) < FLOAT32_ROUNDING
    assert distance(packed[0], forward(alone, tokens)[0]) > 0.1  # which the mask is there for


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_no_gradient_crosses_from_document_to_document(position):
    T = 8
    config = replace(PACKED, position=position, tie_embeddings=False)
    model = large(config)
    # Every token occurs once, so the gradient for its row of wte is that for one position's embedding.
    tokens = jnp.arange(T).at[3].set(EOT)[None]
    by_embedding = jax.jit(
        jax.jacrev(lambda wte: nll(eqx.tree_at(lambda m: m.wte, model, wte)(tokens), tokens)[0])
    )(model.wte)
    depends = (by_embedding[:, tokens[0]] != 0).any(-1)  # (loss at t, embedding at s)
    expected = np.tri(T, dtype=bool)
    expected[3:, :3] = False
    np.testing.assert_array_equal(depends, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_mask_without_an_end_of_text_changes_nothing(dtype):
    tokens = random_tokens(replace(TINY, vocab_size=EOT))
    with_mask, without = (large(replace(PACKED, eot=eot, dtype=dtype)) for eot in (EOT, None))
    assert distance(forward(with_mask, tokens), forward(without, tokens)) < FLOAT32_ROUNDING


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_a_sample_after_end_of_text_reads_what_training_read(position):
    model = large(replace(PACKED, position=position))
    tokens, documents = packed_tokens()
    document = documents[0][1]
    features, _ = model.extend(tokens[:1, document], Cache.empty(model.config, 1), model.layers())
    expected = jax.jit(lambda tokens: model.features(tokens))(tokens)[:1, document]
    assert distance(features, expected) < FLOAT32_ROUNDING


def test_cudnns_kernel_is_not_used_with_documents():
    # It has no such mask. Were it called, tracing would fail: there is no NVIDIA GPU for it to ask.
    model = large(replace(PACKED, attention="cudnn", dtype="bfloat16"))
    einsum = large(replace(model.config, attention="einsum"))
    tokens, _ = packed_tokens()
    np.testing.assert_array_equal(forward(model, tokens), forward(einsum, tokens))


# --- dropout ---


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("width", [128, 127])
def test_dropout_zeroes_the_fraction_and_keeps_the_mean(rate, width):
    x = jnp.ones((64, 100, width))
    y = np.asarray(dropout(x, rate, jax.random.key(0)))
    kept = y != 0
    standard_error = math.sqrt(rate * (1 - rate) / y.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * standard_error
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=2**-15)  # the rate is a multiple of 2^-16
    assert abs(y.mean() - 1) < 5 * standard_error / (1 - rate)
    # Neighbours share a random number and yet are independent.
    both = (kept[..., :-1:2] & kept[..., 1::2]).mean()
    assert both == pytest.approx((1 - rate) ** 2, abs=5 / math.sqrt(y.size / 2))


def test_the_largest_rate_drops_nearly_everything():
    y = np.asarray(dropout(jnp.ones((256, 1024)), np.nextafter(1, 0), jax.random.key(0)))
    assert set(np.unique(y)) <= {0.0, 2.0**16} and (y > 0).sum() < 30  # 4 of 2^18 are expected to stay


def test_a_key_turns_dropout_on_and_decides_it():
    on, off = (large(replace(TINY, dropout=rate)) for rate in (0.2, 0.0))
    tokens = random_tokens(TINY)
    without = forward(on, tokens, None)
    assert (forward(on, tokens, None) == without).all()
    assert (forward(off, tokens, jax.random.key(0)) == without).all()
    first = forward(on, tokens, jax.random.key(0))
    assert (first == forward(on, tokens, jax.random.key(0))).all()
    assert not (first == forward(on, tokens, jax.random.key(1))).all(-1).any()
    assert not (first == without).all(-1).any()


def test_the_embedding_and_both_halves_of_every_block_draw_their_own_masks():
    rate = 0.5
    model = large(replace(TINY, dropout=rate, bias=True))
    # What is added to the residual stream is all ones, 5 times: by the embedding and 2 blocks' 2 halves.
    model = jax.tree.map(jnp.zeros_like, model)
    ones = (model.wte, model.blocks.attn.c_proj.bias, model.blocks.mlp.c_proj.bias)
    model = eqx.tree_at(
        lambda m: (m.wte, m.blocks.attn.c_proj.bias, m.blocks.mlp.c_proj.bias, m.ln_f),
        model,
        (*map(jnp.ones_like, ones), eqx.nn.Identity()),
    )
    tokens = random_tokens(TINY, B=64)
    kept = (
        np.asarray(jax.jit(GPT.features)(model, tokens, key=jax.random.key(0))) / 2
    )  # of the five, at each element
    n = kept.size
    for k in range(6):
        p = math.comb(5, k) / 2**5
        assert abs((kept == k).mean() - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert not (kept[0] == kept[1]).all()


def test_attention_weights_are_dropped_out():
    rate, S = 0.25, 16
    config = replace(TINY, dropout=rate)
    q = jnp.zeros((64, 4, S, S))  # equal scores: query t weighs each of its t + 1 keys by 1 / (t + 1)
    v = jnp.broadcast_to(jnp.eye(S), q.shape)  # so that what comes out are the weights
    weights = np.asarray(attention(q[:, :, None], q, v, 0, config, jax.random.key(0)))[:, :, 0]
    weights = weights * np.arange(1, S + 1)[:, None]
    readable = np.broadcast_to(np.tri(S, dtype=bool), weights.shape)
    assert (weights[~readable] == 0).all()
    dropped = weights[readable] == 0
    assert abs(dropped.mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / dropped.size)
    np.testing.assert_allclose(weights[readable][~dropped], 1 / (1 - rate), rtol=FLOAT32_ROUNDING)
    same = (weights[:1, :1] == weights).all((-1, -2))
    assert same.sum() == 1  # each head of each example has its own mask


# --- what it refuses and what it declares ---


@pytest.mark.parametrize(
    "wrong, names",
    [
        (dict(n_embd=100, n_head=3), "n_embd=100 .*n_head=3"),
        (dict(n_embd=96, n_head=6, n_kv_head=4), "n_head=6 .*n_kv_head=4"),
        (dict(n_embd=36, n_head=4, position="rope"), "rope .*n_embd / n_head is 9"),
        *((dict({name: 0}), f"{name}=0 ") for name in ("block_size", "vocab_size", "n_layer", "n_embd")),
        *((dict({name: 0}), f"{name}=0 ") for name in ("n_hidden", "norm_eps", "rope_theta", "rope_scaling")),
        (dict(n_head=0), "n_head=0 "),
        (dict(n_kv_head=0), "n_kv_head=0 "),
        (dict(n_kv_head=-2), "n_kv_head=-2 "),
        (dict(dropout=1.0), "dropout=1.0 "),
        (dict(dropout=-0.5), "dropout=-0.5 "),
        (dict(eot=50304), "eot=50304 .*below 50304"),
        (dict(eot=-1), "eot=-1 "),
    ],
)
def test_impossible_shapes_are_refused_in_one_line(wrong, names):
    with pytest.raises(ValueError, match=names) as error:
        GPTConfig(**wrong)
    assert "\n" not in str(error.value)


def test_more_tokens_than_learned_positions_are_refused_in_one_line():
    with pytest.raises(ValueError, match="17 tokens .*block_size=16"):
        forward(GPT(TINY, key=jax.random.key(0)), random_tokens(TINY, T=17))


def test_arrays_have_the_shapes_and_dtypes_that_signatures_state():
    script = """
import jaxtyping
with jaxtyping.install_import_hook("model", "beartype.beartype"):
    from model import GPT, Cache, GPTConfig
import equinox as eqx, jax, jax.numpy as jnp

llama = dict(position="rope", norm="rmsnorm", n_kv_head=2, tie_embeddings=False, qk_norm=True)

def use(config, key):
    model, tokens = GPT(config, key=key), jnp.zeros((2, 7), jnp.int32)
    jax.grad(lambda model: model(tokens, key=key).sum())(model)
    model.extend(tokens, Cache.empty(config, 2), model.layers())

for variant in (dict(mlp="gelu", bias=True), llama):
    for dtype, eot in (("float32", None), ("bfloat16", 16)):
        for key in (jax.random.key(0), jax.random.PRNGKey(0)):
            config = GPTConfig(8, 17, 2, n_head=4, n_embd=32, dropout=0.1, dtype=dtype, eot=eot, **variant)
            eqx.filter_eval_shape(use, config, key)  # traces, which checks, and runs nothing
try:
    GPT(config, key=key)(jnp.zeros(7, jnp.int32))
except jaxtyping.TypeCheckError:
    print("checked")
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "checked\n", run.stderr
