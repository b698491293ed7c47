"""Choosing the next token: the kept sets are those of `transformers`, and the draws follow the softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from generation import sampling
from generation.sampling import PLAIN, Settings, Tally, keep_min_p, keep_top_k, keep_top_p

B, V = 200, 65
LOGITS = np.random.default_rng(0).normal(scale=3, size=(B, V)).astype(np.float32)


def keys(n, seed=0):
    return jax.random.split(jax.random.key(seed), n)


def of_rows(n, **settings):
    """Return the same settings for n rows."""
    return Settings(*(jnp.full((n, 1), x) for x in Settings(**settings)))


def sample(logits, keys, **settings):
    return sampling.sample(logits, keys, of_rows(len(logits), **settings))


def kept_by(warper):
    return torch.isfinite(warper(None, torch.tensor(LOGITS))).numpy()


@pytest.mark.parametrize("k", [1, 10, V])
def test_top_k_keeps_what_transformers_keeps(k):
    kept = np.isfinite(keep_top_k(LOGITS, k))
    assert (kept.sum(axis=-1) == k).all()
    np.testing.assert_array_equal(kept, kept_by(TopKLogitsWarper(k)))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.999, 1.0])
def test_top_p_and_min_p_keep_what_transformers_keeps(p):
    for keep, theirs in ((keep_top_p, TopPLogitsWarper), (keep_min_p, MinPLogitsWarper)):
        np.testing.assert_array_equal(np.isfinite(keep(LOGITS, p)), kept_by(theirs(p)))


def penalized(prompt, text, bias=(), tallied=2, **settings):
    """Penalize rows of one prompt and text, of which the tally has `tallied` tokens."""
    tally = Tally.empty(B, V)
    tally.prompt[:, prompt] = True
    np.add.at(tally.drawn, (slice(None), np.array(text[:tallied], int)), 1)
    for token, value in bias:
        tally.bias[:, token] = value
    new = text[tallied:]
    tokens = np.tile(np.array(new + [17] * (4 - len(new)), np.int32), (B, 1))
    rest = jnp.asarray(tokens), jnp.asarray(len(new)), of_rows(B, **settings)
    return sampling.penalize(jnp.asarray(LOGITS), tally, *rest)


@pytest.mark.parametrize("penalty, tallied", [(0.8, 0), (1.3, 1), (1.3, 3)])
def test_a_repetition_penalty_changes_what_transformers_changes(penalty, tallied):
    given = torch.tensor([[3, 9, 9, 5, 9]]).repeat(B, 1)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(given, torch.tensor(LOGITS)).numpy()
    changed = penalized([3, 9], [9, 5, 9], tallied=tallied, repetition_penalty=penalty)
    np.testing.assert_allclose(changed, expected, rtol=1e-6)


@pytest.mark.parametrize("tallied", [0, 1, 3])
def test_presence_and_frequency_penalties_are_those_of_openai(tallied):
    """Its documents: mu[j] -> mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence."""
    counts = np.zeros(V, np.float32)
    counts[[5, 9]] = 1, 2
    expected = LOGITS - counts * 0.25 - (counts > 0) * 0.5
    changed = penalized([3, 9], [9, 5, 9], tallied=tallied, presence_penalty=0.5, frequency_penalty=0.25)
    np.testing.assert_allclose(changed, expected, rtol=1e-6, atol=1e-6)


def test_a_bias_is_added_before_other_penalties():
    biased = LOGITS.copy()
    biased[:, 7] += 4
    np.testing.assert_array_equal(penalized([7], [], bias=[(7, 4.0)]), biased)
    expected = RepetitionPenaltyLogitsProcessor(2.0)(torch.tensor([[7]]).repeat(B, 1), torch.tensor(biased))
    changed = penalized([7], [], bias=[(7, 4.0)], repetition_penalty=2.0)
    np.testing.assert_allclose(changed, expected.numpy(), rtol=1e-6)


def test_a_row_without_penalties_keeps_every_bit_beside_one_that_has_some():
    np.testing.assert_array_equal(penalized([3, 9], [9, 5]), LOGITS)
    mixed = Settings(*(jnp.full((B, 1), x).at[0].set(2) for x in PLAIN))
    tally = Tally.empty(B, V)
    tally.drawn[:] = 1
    tokens = jnp.zeros((B, 4), jnp.int32)
    changed = np.asarray(sampling.penalize(jnp.asarray(LOGITS), tally, tokens, jnp.asarray(0), mixed))
    np.testing.assert_array_equal(changed[1:], LOGITS[1:])
    assert (changed[0] != LOGITS[0]).all()


@pytest.mark.parametrize(
    "temperature, settings",
    [(1.0, {}), (0.5, {"top_k": 5}), (1.7, {"top_k": 8, "top_p": 0.8}), (0.5, {"min_p": 0.12})],
)
def test_draws_have_the_frequencies_that_transformers_gives(temperature, settings):
    """By Pearson's chi-squared test, with a fixed key."""
    n, logits = 20_000, LOGITS[:1, :12] / 3
    expected = TemperatureLogitsWarper(temperature)(None, torch.tensor(logits))
    for name, theirs in dict(top_k=TopKLogitsWarper, top_p=TopPLogitsWarper, min_p=MinPLogitsWarper).items():
        if name in settings:
            expected = theirs(settings[name])(None, expected)
    expected = n * expected.double().softmax(-1)[0].numpy()

    drawn = sample(jnp.tile(logits, (n, 1)), keys(n), temperature=temperature, **settings)
    counts = np.bincount(drawn, minlength=12)
    kept = expected > 0
    assert counts[~kept].sum() == 0
    assert chisquare(counts[kept], expected[kept]).pvalue > 0.001


GREEDY = dict(temperature=0, top_k=3, top_p=0.5)


@pytest.mark.parametrize("settings", [GREEDY, {"top_k": 1}, {"top_p": 0}, {"temperature": 1e-30}])
def test_the_narrowest_settings_leave_only_the_likeliest(settings):
    tokens = sample(LOGITS, keys(B), **settings)
    np.testing.assert_array_equal(tokens, LOGITS.argmax(axis=-1))
    assert tokens.dtype == jnp.int32


@pytest.mark.parametrize("settings", [{"top_k": 0}, {"top_k": -1}, {"top_k": V, "top_p": 1.0}])
def test_the_widest_settings_change_nothing(settings):
    np.testing.assert_array_equal(sample(LOGITS, keys(B), **settings), sample(LOGITS, keys(B)))
