"""Rotary embeddings: each pair turns by its angle, so that scores depend on how far apart two tokens are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.rotary import inverse_frequencies, rotary_table, rotate
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from model import GPT, GPTConfig

C, THETA = 16, 10000.0


def turned(x, positions, scaling=1.0):
    """x of shape (B, heads, T, C), turned as in attention."""
    return rotate(x, *rotary_table(positions, inverse_frequencies(C, THETA, scaling)))


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


def test_scores_depend_on_the_distance_alone():
    q, k = random(1, 2, 6, C), random(1, 2, 6, C, seed=1)
    here, there = np.arange(6)[None], np.arange(6)[None] + 50
    scores, moved = (
        jnp.einsum("bhtc,bhsc->bhts", turned(q, at), turned(k, at), precision="highest")
        for at in (here, there)
    )
    # 16 products of numbers up to 4, with angles up to 55 that are off by 55 * 2^-24.
    np.testing.assert_allclose(moved, scores, rtol=0, atol=16 * 16 * 55 * 2**-24)
    unturned = jnp.einsum("bhtc,bhsc->bhts", q, k, precision="highest")
    assert abs(scores - unturned).max() > 1


def test_a_rotation_keeps_lengths_and_the_dtype():
    x = random(2, 3, 5, C)
    y = turned(x, np.arange(5)[None] + 1000)
    np.testing.assert_allclose(jnp.linalg.norm(y, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-6)
    assert turned(x.astype(jnp.bfloat16), np.arange(5)[None]).dtype == jnp.bfloat16


@pytest.mark.parametrize("eot, made", [(None, False), (7, True)])
def test_the_table_is_a_constant_of_the_program_unless_it_depends_on_the_tokens(eot, made):
    config = GPTConfig(16, 50, n_layer=2, n_head=2, n_embd=32, position="rope", dropout=0.0, eot=eot)
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
