"""Products and look-ups in a chosen dtype: values and gradients are those of plain ones, at any shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fast import How, embedding_lookup, product
from model import GPTConfig
from tests.helpers import named_arrays, slowly
from tests.models import large, random_tokens, train


@pytest.mark.parametrize("result", ["float32", "bfloat16"])
def test_a_product_has_the_dtype_that_is_asked_for_and_its_gradient_that_of_x(result):
    x, w = jnp.ones((3, 5, 48), jnp.bfloat16), jnp.ones((48, 7))
    y, back = jax.vjp(lambda x: product("btd,df->btf", x, w, "bfloat16", result), x)
    assert y.dtype == result
    assert back(y)[0].dtype == jnp.bfloat16


SUBSCRIPTS = ["btd,df->btf", "bktc,bksc->bkts", "bkts,bksc->bktc", "btd,vd->btv"]


@pytest.mark.parametrize("subscripts", SUBSCRIPTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_and_its_gradients_are_products_of_operands_in_dtype(subscripts, dtype):
    sizes = dict(zip("bkgtscdvf", (2, 2, 3, 5, 7, 4, 6, 9, 8), strict=True))
    random = np.random.default_rng(0)
    in_a, in_b, in_y = subscripts.replace("->", ",").split(",")
    a, b, dy = (
        jnp.asarray(random.normal(size=[sizes[axis] for axis in axes]), jnp.float32)
        for axes in (in_a, in_b, in_y)
    )
    y, back = jax.vjp(lambda a, b: product(subscripts, a, b, dtype), a, b)
    ra, rb, rdy = (np.asarray(x.astype(dtype), np.float64) for x in (a, b, dy))
    expected = (
        np.einsum(subscripts, ra, rb),
        np.einsum(f"{in_y},{in_b}->{in_a}", rdy, rb),
        np.einsum(f"{in_y},{in_a}->{in_b}", rdy, ra),
    )
    for ours, theirs in zip((y, *back(dy)), expected, strict=True):
        assert ours.dtype == jnp.float32
        # Sums of up to 15 products of numbers up to 4, each rounded to 2^-24, less than operands are.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=15 * 16 * 2**-24)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_a_table_are_rounded_and_their_gradient_is_summed_in_float32(dtype):
    random = np.random.default_rng(0)
    table = random.normal(size=(7, 4)).astype(np.float32)
    tokens = random.integers(5, size=(3, 400))  # each many times, two of the table's never
    dy = random.normal(size=(3, 400, 4)).astype(np.float32)
    rows, back = jax.vjp(lambda table: embedding_lookup(table, tokens, dtype), table)
    expected = np.asarray(jnp.asarray(table, dtype), np.float32)[tokens]
    np.testing.assert_array_equal(rows, expected)
    (gradient,) = back(jnp.asarray(dy))
    exact = np.zeros((7, 4))
    np.add.at(exact, tokens.ravel(), dy.reshape(-1, 4).astype(np.float64))
    # Sums of about 240 numbers up to 4, each addition rounded to 2^-24 of a sum below 64.
    np.testing.assert_allclose(gradient, exact, rtol=0, atol=240 * 64 * 2**-24)
    assert rows.dtype == gradient.dtype == jnp.float32


# Not every bfloat16 product is implemented in XLA's CPU backend. Which are depends on the shape and on how
# the loop over layers is compiled.
@pytest.mark.parametrize(
    "mlp, tie_embeddings, unroll, B, T, V, H, C",
    [
        ("gelu", False, 1, 3, 7, 1000, 3, 24),
        ("swiglu", True, 0, 1, 1, 1000, 3, 8),
        *slowly(("gelu", True, 0, 2, 7, 65, 3, 8), ("swiglu", False, 1, 1, 1, 65, 3, 8)),
    ],
)
def test_bfloat16_trains_at_odd_shapes(mlp, tie_embeddings, unroll, B, T, V, H, C):
    shape = dict(block_size=T, vocab_size=V, n_layer=2, n_head=H, n_kv_head=1, n_embd=H * C)
    shape |= dict(position="rope" if tie_embeddings else "learned")
    config = GPTConfig(**shape, mlp=mlp, tie_embeddings=tie_embeddings)
    model = large(config, How("bfloat16", unroll=unroll))
    tokens, targets = random_tokens(config, B, T), random_tokens(config, B, T, seed=1)
    (loss, _), gradients = train(model, tokens, targets)
    assert jnp.isfinite(loss)
    for name, gradient in named_arrays(gradients).items():
        assert gradient.dtype == jnp.float32, name
        assert np.isfinite(gradient).all(), name
        # A token alone reads itself, whatever its query and its key are.
        without = T == 1 and name in ("blocks.attn.c_q.weight", "blocks.attn.c_k.weight")
        assert (gradient != 0).any() != without, name
