"""FLOPs are those of nanoGPT. And those of a step as it is traced: tools/planning/test_program.py."""

from dataclasses import replace

import equinox as eqx
import jax
import pytest

from model import GPT, GPTConfig
from runs.metrics import flops_per_token


def test_flops_are_those_of_nanogpt():
    config = GPTConfig(mlp="gelu")
    L, H, Q, T = 12, 12, 64, 1024
    N = sum(x.size for x in jax.tree.leaves(eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))))
    N -= T * 768  # nanoGPT leaves out wpe
    # nanoGPT counts the gains of the norms as if they were matrices: 19,200 of 124 million.
    assert flops_per_token(config, T) == 6 * (N - 25 * 768) + 12 * L * H * Q * T
    assert flops_per_token(config, T) == pytest.approx(6 * N + 12 * L * H * Q * T, rel=1e-3)


def test_a_window_costs_as_many_keys_as_it_lets_a_token_read():
    gpt2, T, N = GPTConfig(), 1024, 256
    saved = flops_per_token(gpt2, T) - flops_per_token(replace(gpt2, window=N), T)
    not_read = sum(t - min(t, N) for t in range(1, T + 1)) / T  # keys of a token, on average
    # Two products of T x T count with both halves; the diagonal makes less than a key's difference.
    assert saved == pytest.approx(12 * 12 * 768 * 2 * not_read, rel=1 / not_read)
    assert flops_per_token(replace(gpt2, window=4096), T) == flops_per_token(gpt2, T)
