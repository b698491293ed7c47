"""The key/value cache: what is read through it is what the model reads at once."""

import jax
import jax.numpy as jnp
import pytest

from fast import How
from generation.decode import Cache, Decoder, forward_with_cache
from model import GPT
from tests.helpers import FLOAT32_ROUNDING, MODERN, distance
from tests.models import TINY, changed, large, random_tokens


@jax.jit
def forward(model, tokens, cache, length):
    return forward_with_cache(Decoder.of(model), tokens, cache, length)


def in_chunks(model, tokens, ends):
    """Read tokens in chunks that end at `ends`: return their features, and the cache after them."""
    cache, length = Cache.empty(model, len(tokens), model.config.block_size), jnp.zeros(len(tokens), int)
    chunks = []
    for chunk in jnp.split(tokens, ends, axis=1):
        features, cache = forward(model, chunk, cache, length)
        length += chunk.shape[1]
        chunks.append(features)
    return jnp.concatenate(chunks, 1), cache


@pytest.mark.parametrize(
    "shape",
    [
        dict(position="learned", mlp="gelu", bias=True),
        dict(position="rope", qk_norm=True, window=4),
        MODERN | dict(mup_base_width=8),
    ],
)
def test_the_cache_gives_what_the_whole_sequence_gives(shape):
    model = large(changed(TINY, n_kv_head=2, **shape))
    tokens = random_tokens(model.config)
    features, _ = in_chunks(model, tokens, [4, 5, 6, 10, 11, 15])
    assert distance(features, jax.jit(GPT.features)(model, tokens)) < FLOAT32_ROUNDING


@pytest.mark.parametrize("result", ["float32", "bfloat16"])
def test_the_cache_holds_keys_and_values_of_each_layer_in_the_dtype_that_products_give(result):
    model = large(changed(TINY, n_kv_head=2, n_layer=3), How("bfloat16", result))
    cache = Cache.empty(model, 5, model.config.block_size)
    assert [len(cache.keys), len(cache.values)] == [3, 3]
    for x in (*cache.keys, *cache.values):
        assert (x.shape, x.dtype) == ((5, 2, 16, 8), result)  # (B, K, S, C)
