"""Rows looked up in a table: rounded as products are, and their gradient summed in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.embedding import look_up

from layers import products


@pytest.mark.parametrize("results", ["float32", "bfloat16"])
def test_rows_are_rounded_and_the_gradient_is_summed_in_float32(monkeypatch, results):
    monkeypatch.setattr(products, "result_dtype", lambda dtype: results)  # a CPU's, and any other device's
    random = np.random.default_rng(0)
    table = random.normal(size=(7, 4)).astype(np.float32)
    tokens = random.integers(5, size=(3, 400))  # each many times, two of the table's never
    dy = random.normal(size=(3, 400, 4)).astype(np.float32)
    rows, back = jax.vjp(lambda table: look_up(table, tokens, "bfloat16"), table)
    expected = np.asarray(jnp.asarray(table, results), np.float32)[tokens]
    np.testing.assert_array_equal(rows, expected)
    (gradient,) = back(jnp.asarray(dy))
    exact = np.zeros((7, 4))
    np.add.at(exact, tokens.ravel(), dy.reshape(-1, 4).astype(np.float64))
    # Sums of about 240 numbers up to 4, each addition rounded to 2^-24 of a sum below 64.
    np.testing.assert_allclose(gradient, exact, rtol=0, atol=240 * 64 * 2**-24)
    assert rows.dtype == gradient.dtype == jnp.float32
