"""Rematerialisation: what is kept for the backward pass, what is computed twice, and that nothing changes."""

from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from model import GPT, GPTConfig
from tests.helpers import FLOAT32_ROUNDING, assert_close, distance
from tests.models import TINY, large, random_tokens, train


@pytest.mark.parametrize(
    "unroll, remat",
    [
        pytest.param(0, "block", marks=pytest.mark.slow),
        (0, "dots"),
        (1, "block"),
        pytest.param(1, "dots", marks=pytest.mark.slow),
    ],
)
def test_recomputing_changes_no_gradient_and_no_dropout(remat, unroll):
    config = replace(TINY, n_layer=3, dropout=0.2, bias=True, unroll=unroll)
    tokens, targets, key = random_tokens(TINY), random_tokens(TINY, seed=1), jax.random.key(0)
    (loss, _), gradients = train(large(config), tokens, targets, key)
    (other_loss, _), others = train(large(replace(config, remat=remat)), tokens, targets, key)
    assert distance(other_loss, loss) < FLOAT32_ROUNDING
    assert_close(others, gradients)


@cache
def gradient_plan(remat, n_layer=3):
    """Bytes of temporaries, and FLOPs with those of one layer, of the features' gradient. B 8, T 64, D 64."""
    config = GPTConfig(block_size=64, n_layer=n_layer, n_head=4, n_embd=64, unroll=1, remat=remat)
    model = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32)
    compiled = (
        jax.jit(jax.grad(lambda model, tokens: model.features(tokens).sum())).lower(model, tokens).compile()
    )
    return compiled.memory_analysis().temp_size_in_bytes, compiled.cost_analysis()["flops"]


@pytest.mark.slow
def test_what_each_layer_keeps_for_the_backward_pass():
    kept = {}
    for remat in ("none", "dots", "block"):
        (three, _), (six, _) = gradient_plan(remat, 3), gradient_plan(remat, 6)
        kept[remat] = (six - three) / 3 / (8 * 64 * 64 * 4)  # float32 arrays of (B, T, D)
    # The residual stream; with dots also q, k, v (3 D), attention's c_proj (D), c_gate and c_fc (F = 3 D).
    # The output of the MLP's c_proj is the next residual stream less this one: no gradient needs it. XLA may
    # keep a few numbers per token besides, of the norms, which round off.
    assert round(kept["block"], 1) == 1
    assert round(kept["dots"], 1) == 1 + 3 + 1 + 3 + 3
    assert kept["none"] > 2 * kept["dots"]


def test_what_is_computed_twice():
    none, dots, block = (gradient_plan(remat)[1] for remat in ("none", "dots", "block"))
    attention, linear = 2 * (2 * 8 * 64 * 64 * 64), 2 * 8 * 64 * 64 * (3 + 1 + 6) * 64
    # Norms, softmax and SiLU come on top: XLA counts about ten operations for each of the elements they
    # read, which are 4 T + 2 D + F per token.
    others = 10 * 8 * 64 * (4 * 64 + 2 * 64 + 192)
    assert attention <= dots - none <= attention + others
    assert attention + linear <= block - none <= attention + linear + others
