"""The key/value cache: what is read through it is what the model reads at once."""

import jax
import jax.numpy as jnp
import pytest

from fast import How, rounded
from generation.decode import Cache, Decoder, forward_with_cache
from model import GPT
from tests.helpers import FLOAT32_ROUNDING, MODERN, assert_same_bits, distance
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
def test_a_cache_has_the_dtype_of_products_whose_weights_are_cast_once(result):
    """And the model computes what it did, to the bit; tokens are looked up in float32."""
    model, tokens = large(changed(TINY, n_kv_head=2), How("bfloat16", result)), random_tokens(TINY)
    cast = rounded(model)
    products = (cast.head, cast.blocks.attn.c_q.weight, cast.blocks.mlp.c_proj.weight)
    assert {x.dtype for x in products} == {jnp.dtype("bfloat16")}
    assert cast.wte.dtype == cast.blocks.ln_1.weight.dtype == "float32"
    ours, theirs = (in_chunks(x, tokens, [8]) for x in (cast, model))
    assert_same_bits(ours, theirs)
    assert {x.dtype for x in jax.tree.leaves(ours[1])} == {jnp.dtype(result)}
    empty = Cache.empty(model, 5, model.config.block_size)
    assert {x.shape for x in (*empty.keys, *empty.values)} == {(5, 2, 16, 8)}  # (B, K, S, C)
