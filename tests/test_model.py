"""What `model.py` promises: it computes GPT-2 and Llama, looks only back, and starts as GPT-2 does."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fast import How
from model import ACTIVATIONS, GPT, GPTConfig, Norm
from runs.metrics import count_parameters
from tests.helpers import assert_close, distance, named_arrays, run_python
from tests.models import TINY, changed, forward, large, random_tokens, train
from tests.reference import NAMES, as_gpt, random_reference

GPT2 = GPTConfig(vocab_size=50257, mlp="gelu", bias=True)
LLAMA = dict(position="rope", norm="rmsnorm", n_kv_head=2, tie_embeddings=False)


# --- the same function as the reference ---


@pytest.mark.parametrize("name", NAMES)
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
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters()}
    assert_close(gradients, as_gpt(name, theirs))


PYTORCH = {
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_erf": torch.nn.functional.gelu,
    "relu2": lambda x: torch.nn.functional.relu(x) ** 2,
    "swiglu": lambda gate, x: torch.nn.functional.silu(gate) * x,
}


@pytest.mark.parametrize("name", PYTORCH)
def test_an_activation_and_its_gradients_are_pytorchs_and_keep_its_inputs_alone(name):
    *x, dy = np.random.default_rng(0).normal(size=(3, 2, 5, 16)).astype(np.float32)[-3 + (name != "swiglu") :]
    y, back = jax.vjp(ACTIVATIONS[name], *x)
    theirs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in x]
    expected = PYTORCH[name](*theirs)
    expected.backward(torch.tensor(dy, dtype=torch.float64))
    # About ten operations on numbers up to 4, rounded to 2^-24; 1 - tanh^2 is multiplied by 5 at most.
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-6, atol=1e-6)
    for ours, a in zip(back(dy), theirs, strict=True):
        np.testing.assert_allclose(ours, a.grad, rtol=1e-6, atol=5e-6)

    x = [jnp.asarray(a, jnp.bfloat16) for a in x]
    y, back = jax.vjp(ACTIVATIONS[name], *x)
    assert y.dtype == jnp.bfloat16
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(back), x, strict=True))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_norms_add_1e_5_to_the_variance(norm):
    layer = Norm(replace(TINY, norm=norm), 4)
    x = np.array([3, -1, 1, -3]) * 1e-3  # of mean 0 and variance 5e-6: as small as epsilon
    np.testing.assert_allclose(layer(jnp.asarray(x)), x / math.sqrt(5e-6 + 1e-5), rtol=1e-6)


# --- initialisation and size ---


@pytest.mark.parametrize(
    "variant, wider", [(LLAMA, 1), (dict(mlp="gelu", bias=True), 1), (LLAMA | dict(mup_base_width=16), 4)]
)
def test_weights_start_as_in_gpt2(variant, wider):
    config = changed(TINY, block_size=64, vocab_size=256, n_layer=4, n_embd=64, **variant)
    for name, leaf in named_arrays(config.build(jax.random.key(0))).items():
        if name.endswith(".bias"):
            assert (leaf == 0).all(), name
        elif "ln_" in name:
            assert (leaf == 1).all(), name
        else:
            std = 0.02 / math.sqrt(2 * 4) if "c_proj" in name else 0.02
            std /= math.sqrt(wider) if "blocks" in name else 1  # µP's hidden matrices
            # Five standard errors of a mean and of a standard deviation.
            assert abs(leaf.mean()) < 5 * std / math.sqrt(leaf.size), name
            assert leaf.std() == pytest.approx(std, rel=5 / math.sqrt(2 * leaf.size)), name


def test_no_two_layers_start_with_the_same_weights():
    config = replace(TINY, n_head=2, n_embd=64, n_hidden=64)  # all of whose matrices are 64 by 64
    block = GPT(config, key=jax.random.key(0)).blocks
    matrices = [np.asarray(w).reshape(2, -1) for w in jax.tree.leaves(block) if w.size == 2 * 64 * 64]
    flat = np.concatenate(matrices)
    correlation = np.corrcoef(flat) - np.eye(len(flat))
    assert len(flat) == 2 * 7 and abs(correlation).max() < 5 / 64


@pytest.mark.parametrize(
    "changes, published",
    [
        ({}, 124_439_808),  # GPT-2
        (dict(n_layer=48, n_head=25, n_embd=1600), 1_557_611_200),  # GPT-2 XL
        (dict(vocab_size=50304, bias=False), 123_587_328 + 1024 * 768),  # nanoGPT, which leaves out wpe
    ],
)
def test_gpt2_and_nanogpt_have_their_published_sizes(changes, published):
    assert count_parameters(replace(GPT2, **changes)) == published


def test_a_swiglu_mlp_is_two_thirds_as_wide_as_a_gelu_one_rounded_up_to_a_multiple_of_64():
    widths = {D: replace(GPT2, n_embd=D, n_head=4, mlp="swiglu").hidden for D in (8, 96, 128, 768, 1600)}
    assert widths == {8: 64, 96: 256, 128: 384, 768: 2048, 1600: 4288}


# --- in bfloat16 ---


def test_bfloat16_is_as_close_to_float32_as_8_bits_allow():
    tokens = random_tokens(TINY)
    logits = forward(large(TINY, How("bfloat16")), tokens)
    assert logits.dtype == jnp.float32
    # A layer is six products in a row, the head one more. Each rounds two operands by up to 2^-8, half the
    # spacing of numbers with 8 bits, and the roundings add up like a random walk.
    most = math.sqrt(2 * (6 * TINY.n_layer + 1)) * 2**-8
    least = 2**-10  # the head's two roundings alone, at random, are this
    assert least < distance(logits, forward(large(TINY), tokens)) < most


# --- what it refuses and what it declares ---


@pytest.mark.parametrize(
    "wrong, names",
    [
        (dict(n_embd=100, n_head=3), "n_embd=100 .*n_head=3"),
        (dict(n_embd=96, n_head=6, n_kv_head=4), "n_head=6 .*n_kv_head=4"),
        (dict(n_embd=36, n_head=4, position="rope"), "rope .*n_embd / n_head is 9"),
        (dict(mup_base_n_head=2), "mup_base_width=0 .*with 2 heads .mup_base_n_head"),
        (dict(mup_base_width=8, head_dim=12), "head_dim must be left out with µP"),
        (dict(mup_base_width=18), "mup_base_width=18 .*with 12 heads .mup_base_n_head"),
    ],
)
def test_impossible_shapes_are_refused_in_one_line(wrong, names):
    with pytest.raises(ValueError, match=names) as error:
        changed(GPT2, **wrong)
    assert "\n" not in str(error.value)


def test_more_tokens_than_learned_positions_are_refused_in_one_line():
    with pytest.raises(ValueError, match="17 tokens .*block_size=16"):
        forward(GPT(TINY, key=jax.random.key(0)), random_tokens(TINY, T=17))


@pytest.mark.slow
def test_arrays_have_the_shapes_and_dtypes_that_signatures_state():
    script = """
import jaxtyping
with jaxtyping.install_import_hook(["model", "fast", "variants", "generation.decode"], "beartype.beartype"):
    from generation.decode import Cache, Decoder, forward_with_cache
    from fast import How, faster
    from variants import VariantConfig
import equinox as eqx, jax, jax.numpy as jnp

llama = dict(position="rope", norm="rmsnorm", n_kv_head=2, tie_embeddings=False, qk_norm=True)

def use(config, key, how):
    model, tokens = config.build(key), jnp.zeros((2, 7), jnp.int32)
    model = faster(model, how) if how else model
    jax.grad(lambda model: model(tokens, key=key).sum())(model)
    cache, length = Cache.empty(model, 2, config.block_size), jnp.zeros(2, jnp.int32)
    forward_with_cache(Decoder.of(model), tokens, cache, length)

gpt2, modern = dict(mlp="gelu", bias=True), dict(mlp="relu2", mup_base_width=8)
plain, fast = (None, None, jax.random.key(0)), (How("bfloat16"), 16, jax.random.PRNGKey(0))
for variant, (how, eot, key) in ((gpt2, plain), (llama, fast), (modern, plain)):
    shape = dict(block_size=8, vocab_size=17, n_layer=2, n_head=4, n_embd=32, dropout=0.1)
    config = VariantConfig(**shape, document_start=eot, **variant)
    eqx.filter_eval_shape(use, config, key, how)  # traces, which checks, and runs nothing
try:
    config.build(key)(jnp.zeros(7, jnp.int32))
except jaxtyping.TypeCheckError:
    print("checked")
"""
    done = run_python("-c", script)
    assert done.stdout == "checked\n", done.stderr
