"""The learning rate is nanoGPT's; `wsd` and `constant` are as their papers have them."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from config.options import Options
from training.optimizer import learning_rate


def nanogpt_learning_rate(o, it):
    if it < o.warmup_iters:
        return o.learning_rate * (it + 1) / (o.warmup_iters + 1)
    if it > o.lr_decay_iters:
        return o.min_lr
    ratio = (it - o.warmup_iters) / (o.lr_decay_iters - o.warmup_iters)
    return o.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (o.learning_rate - o.min_lr)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(warmup_iters=0, lr_decay_iters=100, learning_rate=1.0, min_lr=0.0),
        dict(warmup_iters=100, lr_decay_iters=5000, learning_rate=1e-3, min_lr=1e-4),
        dict(warmup_iters=10, lr_decay_iters=11),
    ],
)
def test_learning_rate_is_nanogpts(changes):
    options = replace(Options(), **changes)
    warmup, end = options.warmup_iters, options.lr_decay_iters
    marks = {0, 1, warmup - 1, warmup, warmup + 1, (warmup + end) // 2, end - 1, end, end + 1, 2 * end}
    steps = sorted({step for step in marks | set(range(0, 2 * end, max(end // 50, 1))) if step >= 0})
    ours = jax.vmap(lambda step: learning_rate(options, step))(jnp.array(steps))
    assert ours.dtype == jnp.float32
    # Float32 holds the angle, at most pi, to about 2^-22, and so the cosine: 1e-6 of the highest rate.
    theirs = [nanogpt_learning_rate(options, step) for step in steps]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * options.learning_rate)


def test_the_learning_rate_is_constant_without_decay():
    options = replace(Options(), decay_lr=False, learning_rate=3e-4, warmup_iters=10, lr_decay_iters=20)
    for schedule in ("cosine", "wsd", "constant"):
        for step in (0, 5, 15, 30):
            assert learning_rate(replace(options, schedule=schedule), step) == np.float32(3e-4)


@pytest.mark.parametrize("warmup, end", [(10, 100), (0, 7), (90, 100)])
def test_wsd_warms_up_stays_and_decays_in_the_last_fifth(warmup, end):
    options = replace(Options(), schedule="wsd", learning_rate=1.0, min_lr=0.25)
    options = replace(options, warmup_iters=warmup, lr_decay_iters=end)
    start = max(warmup, 0.8 * end)
    corners = [(0, 1 / (warmup + 1)), (warmup, 1.0), (start, 1.0), (end, 0.25), (2 * end, 0.25)]
    steps = np.arange(2 * end)
    ours = jax.vmap(lambda step: learning_rate(options, step))(jnp.array(steps))
    # Float32 holds a part of the decay to 2^-24, after a step number below 2^8 minus the start of the decay.
    np.testing.assert_allclose(ours, np.interp(steps, *zip(*corners, strict=True)), rtol=0, atol=2**-15)


def test_a_constant_schedule_warms_up():
    options = replace(Options(), schedule="constant", learning_rate=3e-4, warmup_iters=3, lr_decay_iters=5)
    ours = jax.vmap(lambda step: learning_rate(options, step))(jnp.arange(8))
    np.testing.assert_allclose(ours, 3e-4 * np.minimum(np.arange(1, 9) / 4, 1), rtol=2**-22)
