"""Attention: which tokens a token reads, how far each pair of a head turns, and dropout of the weights."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from model import GPT, GPTConfig, causal_attention, causal_mask, inverse_frequencies, rotation
from tests.helpers import FLOAT32_ROUNDING
from tests.models import TINY, changed, random_tokens

C, THETA = 16, 10000.0


def turned(x, positions):
    """x of shape (B, heads, T, C), turned as in attention."""
    return rotation(GPTConfig(n_head=1, n_embd=C, position="rope", rope_theta=THETA), positions)(x)


def random(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_each_pair_turns_by_its_position_times_its_frequency(array):
    x, positions = random(2, 3, 5, C), np.array([[0, 1, 2, 3, 4], [7, 100, 101, 3, 0]])
    x64 = np.asarray(x, np.float64)
    angles = positions[:, None, :, None] * THETA ** (-2 * np.arange(C // 2) / C)
    as_complex = (x64[..., : C // 2] + 1j * x64[..., C // 2 :]) * np.exp(1j * angles)
    expected = np.concatenate([as_complex.real, as_complex.imag], -1)
    # A float32 angle of up to 101 is off by up to 101 * 2^-24 of a power's few roundings; x is up to 4.
    np.testing.assert_allclose(turned(x, array(positions)), expected, rtol=0, atol=4 * 4 * 101 * 2**-24)
    assert turned(x.astype(jnp.bfloat16), array(positions)).dtype == jnp.bfloat16


@pytest.mark.parametrize("eot, made", [(None, False), (7, True)])
def test_the_table_is_a_constant_of_the_program_unless_it_depends_on_the_tokens(eot, made):
    config = GPTConfig(
        block_size=16,
        vocab_size=50,
        n_layer=2,
        n_head=2,
        n_embd=32,
        position="rope",
        dropout=0.0,
        document_start=eot,
    )
    gradient = jax.jit(jax.grad(lambda model, tokens: model(tokens).sum()))
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, 50)
    compiled = gradient.lower(GPT(config, key=jax.random.key(0)), tokens).compile().as_text()
    assert ("sine(" in compiled) == made


@pytest.mark.parametrize("scaling", [8.0, 32.0])
def test_llama_3s_frequencies_are_those_of_transformers(scaling):
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": scaling}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(hidden_size=128, num_attention_heads=1, head_dim=128, rope_parameters=rope)
    expected = LlamaRotaryEmbedding(config).inv_freq.numpy()
    found, unscaled = (inverse_frequencies(128, 500000.0, factor) for factor in (scaling, 1.0))
    assert (expected < np.asarray(unscaled) * 0.99).sum() > 10
    # transformers' are a power, a clip and a few products in float32, each exact to 2^-24 relative to its
    # result, the power to a few of that per unit of the exponent's logarithm, 13.
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# --- the mask ---


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("begins", [None, [[0, 0, 0, 3, 3, 5, 5, 5], [0, 1, 1, 1, 1, 1, 1, 1]]])
def test_a_token_reads_the_last_tokens_up_to_itself_of_its_document(window, begins):
    T = 8
    documents = None if begins is None else jnp.array(begins)
    found = causal_mask(jnp.arange(T)[None], T, window, documents)
    for row, begin in zip(found, begins or [[0] * T], strict=True):
        for t in range(T):
            first = max(begin[t], t + 1 - (window or T))
            assert [s for s in range(T) if row[t, s]] == list(range(first, t + 1))


# --- dropout ---


def test_attention_weights_are_dropped_out():
    rate, S = 0.25, TINY.block_size
    config = changed(TINY, dropout=rate)
    q = jnp.zeros((64, S, 4, S))  # equal scores: query t weighs each of its t + 1 keys by 1 / (t + 1)
    v = jnp.broadcast_to(jnp.eye(S)[:, None], q.shape)  # so that what comes out are the weights
    _, attend = causal_attention(config, random_tokens(config, B=64))
    weights = np.asarray(attend(q, q, v, jax.random.key(0))).swapaxes(1, 2)
    weights = weights * np.arange(1, S + 1)[:, None]
    readable = np.broadcast_to(np.tri(S, dtype=bool), weights.shape)
    assert (weights[~readable] == 0).all()
    dropped = weights[readable] == 0
    assert abs(dropped.mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / dropped.size)
    np.testing.assert_allclose(weights[readable][~dropped], 1 / (1 - rate), rtol=FLOAT32_ROUNDING)
    same = (weights[:1, :1] == weights).all((-1, -2))
    assert same.sum() == 1  # each head of each example has its own mask
