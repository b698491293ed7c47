"""Dropout drops the fraction that it should, independently, and keeps the mean."""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fast import FastDropout, How
from model import GPT, Dropout
from tests.helpers import FLOAT32_ROUNDING
from tests.models import TINY, forward, large, random_tokens


def fast_dropout(rate):
    return FastDropout(Dropout(rate), How())


BOTH = pytest.mark.parametrize("dropout", [Dropout, fast_dropout])
IN_BOTH = pytest.mark.parametrize("how", [None, How()])


@BOTH
@pytest.mark.parametrize("rate, width", [(0.1, 127), (0.5, 128)])
def test_dropout_zeroes_the_fraction_and_keeps_the_mean(dropout, rate, width):
    x = jnp.ones((64, 100, width))
    y = np.asarray(dropout(rate)(x, jax.random.key(0)))
    kept = y != 0
    standard_error = math.sqrt(rate * (1 - rate) / y.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * standard_error
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=2**-15)  # the rate is a multiple of 2^-16
    assert abs(y.mean() - 1) < 5 * standard_error / (1 - rate)
    # Neighbours share a random number and yet are independent.
    both = (kept[..., :-1:2] & kept[..., 1::2]).mean()
    assert both == pytest.approx((1 - rate) ** 2, abs=5 / math.sqrt(y.size / 2))


def test_the_largest_rate_drops_nearly_everything():
    y = np.asarray(fast_dropout(float(np.nextafter(1, 0)))(jnp.ones((256, 1024)), jax.random.key(0)))
    assert set(np.unique(y)) <= {0.0, 2.0**16} and (y > 0).sum() < 30  # 4 of 2^18 are expected to stay


@BOTH
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_is_kept_is_scaled_and_keeps_its_dtype(dropout, dtype):
    x = jax.random.normal(jax.random.key(1), (32, 64)).astype(dtype)
    y = dropout(0.5)(x, jax.random.key(0))  # whose scale, 2, is exact in both dtypes
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, jnp.where(y != 0, 2 * x, 0))
    assert 0 < (y != 0).sum() < y.size


# --- in the network ---


@IN_BOTH
def test_attention_weights_are_dropped_out(how):
    rate, S = 0.25, TINY.block_size
    config = replace(TINY, dropout=rate)
    q = jnp.zeros((64, 4, S, S))  # equal scores: query t weighs each of its t + 1 keys by 1 / (t + 1)
    v = jnp.broadcast_to(jnp.eye(S), q.shape)  # so that what comes out are the weights
    _, attend = large(config, how).causal_attention(random_tokens(config, B=64))
    weights = np.asarray(attend(q, q, v, jax.random.key(0)))
    weights = weights * np.arange(1, S + 1)[:, None]
    readable = np.broadcast_to(np.tri(S, dtype=bool), weights.shape)
    assert (weights[~readable] == 0).all()
    dropped = weights[readable] == 0
    assert abs(dropped.mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / dropped.size)
    np.testing.assert_allclose(weights[readable][~dropped], 1 / (1 - rate), rtol=FLOAT32_ROUNDING)
    same = (weights[:1, :1] == weights).all((-1, -2))
    assert same.sum() == 1  # each head of each example has its own mask


@IN_BOTH
def test_a_key_turns_dropout_on_and_decides_it(how):
    on, off = (large(replace(TINY, dropout=rate), how) for rate in (0.2, 0.0))
    tokens = random_tokens(TINY)
    without = forward(on, tokens, None)
    assert (forward(on, tokens, None) == without).all()
    assert (forward(off, tokens, jax.random.key(0)) == without).all()
    first = forward(on, tokens, jax.random.key(0))
    assert (first == forward(on, tokens, jax.random.key(0))).all()
    assert not (first == forward(on, tokens, jax.random.key(1))).all(-1).any()
    assert not (first == without).all(-1).any()


@IN_BOTH
def test_the_embedding_and_both_halves_of_every_block_draw_their_own_masks(how):
    rate = 0.5
    model = large(replace(TINY, dropout=rate, bias=True), how)
    # What is added to the residual stream is all ones, 5 times: by the embedding and 2 blocks' 2 halves.
    model = jax.tree.map(jnp.zeros_like, model)
    ones = (model.wte, model.blocks.attn.c_proj.bias, model.blocks.mlp.c_proj.bias)
    model = eqx.tree_at(
        lambda m: (m.wte, m.blocks.attn.c_proj.bias, m.blocks.mlp.c_proj.bias, m.ln_f),
        model,
        (*map(jnp.ones_like, ones), eqx.nn.Identity()),
    )
    tokens = random_tokens(TINY, B=64)
    features = jax.jit(GPT.features)(model, tokens, key=jax.random.key(0))
    kept = np.asarray(features) / 2  # of the five, at each element
    n = kept.size
    for k in range(6):
        p = math.comb(5, k) / 2**5
        assert abs((kept == k).mean() - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert not (kept[0] == kept[1]).all()
