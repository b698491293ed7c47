"""Attention: which tokens a token reads. How far positions turn it: test_model.py, by Llama 3."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from model import causal_mask
from tests.helpers import FLOAT32_ROUNDING, distance, slowly
from tests.models import TINY, changed, forward, large, random_tokens

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


# --- documents in a packed row ---


EOT = 64
PACKED = changed(TINY, document_start=EOT, n_kv_head=2)
# Two rows: the end of a document and three more, one of them empty; and a row that begins with one.
PARTS = [(0, 0, 5), (0, 5, 12), (0, 12, 13), (0, 13, 16), (1, 0, 4), (1, 4, 16)]  # row, begin, end


@pytest.mark.parametrize("position", ["rope", *slowly("learned")])
def test_a_document_in_a_packed_row_is_as_if_alone(position):
    model = large(replace(PACKED, position=position))
    tokens = random_tokens(replace(TINY, vocab_size=EOT))
    for row, begin, _ in PARTS[1:]:
        tokens = tokens.at[row, begin].set(EOT)
    packed = forward(model, tokens)
    alone = large(replace(model.config, document_start=None))
    for row, begin, end in PARTS:
        expected = forward(alone, tokens[row : row + 1, begin:end])[0]
        assert distance(packed[row, begin:end], expected) < FLOAT32_ROUNDING
    assert distance(packed[0], forward(alone, tokens)[0]) > 0.1  # which the mask is there for
