"""The loop over blocks, rematerialised and with folded norms: what it keeps, and computes twice."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from config.options import Options
from fast import How, faster, fold_norms
from model import GPTConfig
from tests.helpers import FLOAT32_ROUNDING, assert_close, distance, moved, slowly
from tests.models import TINY, changed, large, random_tokens, train
from training.lora import add_adapters

# --- rematerialisation ---


@pytest.mark.parametrize("unroll, remat", [(1, "block"), *slowly((0, "block"), (1, "dots"))])
def test_recomputing_changes_no_gradient_and_no_dropout(remat, unroll):
    config = changed(TINY, n_layer=3, dropout=0.2, bias=True)
    tokens, targets, key = random_tokens(TINY), random_tokens(TINY, seed=1), jax.random.key(0)
    (loss, _), gradients = train(large(config, How(unroll=unroll)), tokens, targets, key)
    (other_loss, _), others = train(large(config, How(unroll=unroll, remat=remat)), tokens, targets, key)
    assert distance(other_loss, loss) < FLOAT32_ROUNDING
    assert_close(others, gradients)


def temporaries(remat, n_layer):
    """Bytes of temporaries of the features' gradient. B 8, T 64, D 64."""
    config = GPTConfig(block_size=64, n_layer=n_layer, n_head=4, n_embd=64)
    model = faster(eqx.filter_eval_shape(config.build, jax.random.key(0)), How(unroll=1, remat=remat))
    tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32)
    gradient = jax.jit(jax.grad(lambda model, tokens: model.features(tokens).sum()))
    return gradient.lower(model, tokens).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_what_each_layer_keeps_for_the_backward_pass():
    """The rest is computed twice: tools/planning/test_program.py counts it."""
    kept = {}
    for remat in ("none", "dots", "block"):
        three_more = temporaries(remat, 6) - temporaries(remat, 3)
        kept[remat] = three_more / 3 / (8 * 64 * 64 * 4)  # float32 arrays of (B, T, D)
    # The residual stream; with dots also q, k, v (3 D), attention's c_proj (D), c_gate and c_fc (F = 3 D).
    # The output of the MLP's c_proj is the next residual stream less this one: no gradient needs it. XLA may
    # keep a few numbers per token besides, of the norms, which round off.
    assert round(kept["block"], 1) == 1
    assert round(kept["dots"], 1) == 1 + 3 + 1 + 3 + 3
    assert kept["none"] > 2 * kept["dots"]


# --- folded norms ---

CASES = {
    "swiglu, layernorm": {},
    "adapters, which are not folded": {},
    "µP, whose attention is not folded": dict(mup_base_width=8),
}


def a_block(case):
    """The first block of a model, in which no norm's weight is 1, and no adapter is 0."""
    model = changed(TINY, n_kv_head=2, **CASES[case]).build(jax.random.key(0))
    if case.startswith("adapters"):
        model = add_adapters(model, Options(lora_rank=2), jax.random.key(2))
    return jax.tree.map(lambda x: x[0], faster(moved(model, 0.1), How()).blocks)


@pytest.mark.parametrize("case", CASES)
def test_a_folded_block_computes_the_same_and_so_do_its_gradients(case):
    block, tokens = a_block(case), random_tokens(TINY)
    _, attend = large(TINY).causal_attention(tokens)
    x, dy = jax.random.normal(jax.random.key(3), (2, *tokens.shape, TINY.n_embd))

    @partial(jax.jit, static_argnums=0)
    def value_and_gradients(prepare, block, x, dy):
        y, back = jax.vjp(lambda block, x: prepare(block)(x, attend), block, x)
        block_gradient, dx = back(dy)
        return {"y": y, "block": block_gradient, "x": dx}

    folded, plain = (value_and_gradients(f, block, x, dy) for f in (fold_norms, lambda block: block))
    assert_close(folded, plain, FLOAT32_ROUNDING)

    stay = {"adapters, which are not folded": "12", "µP, whose attention is not folded": "1"}
    for n in "12":  # µP wraps attention, and an adapter each layer
        ours, theirs = (getattr(x, f"ln_{n}").weight for x in (fold_norms(block), block))
        assert (ours == (theirs if n in stay.get(case, "") else 1)).all()
