"""The ideas of variants.py: what µP computes, and that a plain run does without the file."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from config.options import Options
from fast import FastNorm
from tests.helpers import FLOAT32_ROUNDING, MODERN, assert_same_bits, distance, random_batch
from tests.models import TINY, changed, forward, large, random_tokens
from tools.inside.views import heads
from training.state import create_state, model_config
from training.step import compile_step
from variants import without_multipliers

V, BASE = 32, 32
OPTIONS = Options(
    **dict(n_layer=2, n_head=4, n_embd=BASE, block_size=16, batch_size=8, gradient_accumulation_steps=1),
    **dict(decay_lr=False, learning_rate=0.01, weight_decay=0.0, unroll=1, dtype="float32"),
)


@cache
def trained(options, steps):
    """The state after some steps on the same batch."""
    state = create_state(model_config(options, V), options)
    step, batch = compile_step(state, options), random_batch(options, V)
    for _ in range(steps):
        state, _ = step(state, *batch)
    return state


@pytest.mark.parametrize("bias", [False, True])
def test_without_its_multipliers_a_model_in_mup_is_a_plain_one_that_computes_the_same(bias):
    config = changed(TINY, qk_norm=True, bias=bias, mup_base_width=8, mup_base_n_head=1)
    model, tokens = large(config), random_tokens(TINY)
    plain = without_multipliers(model)
    assert type(plain.blocks.attn.q_norm) is type(plain.ln_f) is FastNorm
    assert distance(forward(plain, tokens), forward(model, tokens)) < FLOAT32_ROUNDING


def test_at_the_bases_width_a_model_in_mup_is_an_ordinary_one():
    ordinary = replace(OPTIONS, **MODERN)
    assert_same_bits(trained(replace(ordinary, mup_base_width=BASE), 2), trained(ordinary, 2))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_activations_after_some_steps_do_not_grow_with_width(optimizer):
    """The coordinate check of arXiv:2203.03466, appendix D.1, in miniature."""
    tokens = random_batch(OPTIONS, V)[0, 0]

    def size_of_logits(n, base):
        options = replace(OPTIONS, n_embd=n * BASE, mup_base_width=base, optimizer=optimizer)
        return float(np.abs(jax.jit(lambda model: model(tokens))(trained(options, 4).model)).mean())

    base = size_of_logits(1, 0)
    assert size_of_logits(4, BASE) < 1.25 * base
    assert size_of_logits(4, 0) > 1.75 * base


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_scores_are_as_large_where_heads_are_added_that_are_as_wide(optimizer):
    tokens = random_batch(OPTIONS, V)[0, 0]

    def mean_score(model):
        """Of the first layer, without its sign."""
        queries_and_keys = [heads(model, row)[:2] for row in tokens]
        return np.mean([abs(q[0] @ k[0].swapaxes(1, 2)) / np.sqrt(q.shape[-1]) for q, k in queries_and_keys])

    def score(n, **base):
        options = replace(OPTIONS, n_embd=n * BASE, n_head=n * OPTIONS.n_head, optimizer=optimizer, **base)
        return mean_score(trained(options, 4).model)

    wide = score(4, mup_base_width=BASE, mup_base_n_head=OPTIONS.n_head)
    assert wide == pytest.approx(score(1), rel=0.15)  # with each head's width as its base: half
