"""Choosing the next token: the kept sets are those of `transformers`, and the draws follow the softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from generation import sampling
from generation.sampling import keep_top_k, keep_top_p

B, V = 200, 65
LOGITS = np.random.default_rng(0).normal(scale=3, size=(B, V)).astype(np.float32)


def keys(n, seed=0):
    return jax.random.split(jax.random.key(seed), n)


def sample(logits, keys, temperature=1.0, top_k=V, top_p=1.0):
    """Draw with the same settings for all rows."""
    settings = np.float32(temperature), np.int32(top_k), np.float32(top_p)
    return sampling.sample(logits, keys, *(jnp.full(len(logits), x) for x in settings))


def kept_by(warper):
    return torch.isfinite(warper(None, torch.tensor(LOGITS))).numpy()


@pytest.mark.parametrize("k", [1, 2, 10, V - 1, V])
def test_top_k_keeps_what_transformers_keeps(k):
    kept = np.isfinite(keep_top_k(LOGITS, k))
    assert (kept.sum(axis=-1) == k).all()
    np.testing.assert_array_equal(kept, kept_by(TopKLogitsWarper(k)))


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.95, 0.999])
def test_top_p_keeps_what_transformers_keeps(p):
    np.testing.assert_array_equal(np.isfinite(keep_top_p(LOGITS, p)), kept_by(TopPLogitsWarper(p)))


@pytest.mark.parametrize("settings", [{}, {"top_k": 5}, {"top_p": 0.7}, {"top_k": 8, "top_p": 0.8}])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_have_the_frequencies_that_transformers_gives(temperature, settings):
    """The statistic of Pearson's chi-squared test, with a fixed key, below its 99.9% quantile."""
    n, logits = 20_000, LOGITS[:1, :12] / 3
    expected = TemperatureLogitsWarper(temperature)(None, torch.tensor(logits))
    if "top_k" in settings:
        expected = TopKLogitsWarper(settings["top_k"])(None, expected)
    if "top_p" in settings:
        expected = TopPLogitsWarper(settings["top_p"])(None, expected)
    expected = n * expected.softmax(-1)[0].numpy()

    drawn = sample(jnp.tile(logits, (n, 1)), keys(n), temperature=temperature, **settings)
    counts = np.bincount(drawn, minlength=12)
    kept = expected > 0
    assert counts[~kept].sum() == 0
    chi_squared = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    quantile = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3, 8: 26.1, 9: 27.9, 11: 31.3}
    assert chi_squared < quantile[kept.sum() - 1]


def test_temperature_0_is_greedy():
    tokens = sample(LOGITS, keys(B), temperature=0, top_k=3, top_p=0.5)
    np.testing.assert_array_equal(tokens, LOGITS.argmax(axis=-1))
    assert tokens.dtype == jnp.int32


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-30}])
def test_the_narrowest_settings_leave_only_the_likeliest(settings):
    np.testing.assert_array_equal(sample(LOGITS, keys(B), **settings), LOGITS.argmax(axis=-1))


@pytest.mark.parametrize("settings", [{"top_k": V}, {"top_p": 1.0}, {"top_k": V, "top_p": 1.0}])
def test_the_widest_settings_change_nothing(settings):
    np.testing.assert_array_equal(sample(LOGITS, keys(B), **settings), sample(LOGITS, keys(B)))


def test_a_row_alone_draws_what_it_draws_among_others():
    together = sample(LOGITS, keys(B), temperature=0.9, top_k=20, top_p=0.9)
    for row in (0, 7, B - 1):
        one = slice(row, row + 1)
        alone = sample(LOGITS[one], keys(B)[one], temperature=0.9, top_k=20, top_p=0.9)
        assert alone.tolist() == [together[row]]


def test_keys_decide_the_draw():
    first, again, other = (sample(LOGITS, keys(B, seed)) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
