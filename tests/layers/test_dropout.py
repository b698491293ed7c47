"""Dropout drops the fraction that it should, independently, and keeps the mean."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fast import Fast
from model import split_key

dropout = Fast().dropout


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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_is_kept_is_scaled_and_keeps_its_dtype(dtype):
    x = jax.random.normal(jax.random.key(1), (32, 64)).astype(dtype)
    y = dropout(x, 0.5, jax.random.key(0))  # whose scale, 2, is exact in both dtypes
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, jnp.where(y != 0, 2 * x, 0))
    assert 0 < (y != 0).sum() < y.size


@pytest.mark.parametrize("rate, key", [(0.5, None), (0.0, jax.random.key(0))])
def test_without_a_key_or_a_rate_it_gives_its_argument(rate, key):
    x = jnp.ones((4, 4))
    assert dropout(x, rate, key) is x


def test_without_a_key_there_are_no_keys_below():
    assert list(split_key(None)) == [None, None]
    first, second = split_key(jax.random.key(0))
    assert first != second
