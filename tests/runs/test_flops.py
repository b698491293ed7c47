"""FLOPs are those of XLA and of nanoGPT."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from fast import How, faster
from model import GPT, GPTConfig
from runs.metrics import flops_per_token
from tests.helpers import MODERN
from tests.models import TINY, changed
from tests.models import train as train_step


@pytest.mark.parametrize(
    "variant", [dict(position="rope", norm="rmsnorm", n_kv_head=2, tie_embeddings=False), MODERN]
)
def test_flops_are_those_xla_counts(variant):
    B, T = 2, 64
    config = changed(TINY, block_size=T, vocab_size=512, n_embd=256, **variant)
    model = faster(eqx.filter_eval_shape(config.build, jax.random.key(0)), How())
    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)
    counted = train_step.lower(model, tokens, tokens).compile().cost_analysis()["flops"]
    # XLA adds one for each element of each elementwise operation (norms, softmax, activations), which is
    # O(D + H T + V) per token against O(D^2 + D V) in products: 1% here, and never less than nothing.
    # Unrolled, because it counts the body of a loop once.
    assert 1 < counted / (B * T * flops_per_token(config, T)) < 1.02


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
