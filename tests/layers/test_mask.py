"""The attention mask lets each token read the tokens that it should."""

import jax.numpy as jnp
import numpy as np
import pytest
from layers.mask import causal_mask


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


def test_queries_may_be_anywhere_among_the_keys():
    whole = causal_mask(jnp.arange(8)[None], 8, 3)
    np.testing.assert_array_equal(causal_mask(jnp.array([[5, 6]]), 8, 3), whole[:, 5:7])
