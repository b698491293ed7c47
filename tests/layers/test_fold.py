"""Norms folded into the layers that read them: what a block computes, and its gradients, stay the same."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from layers.context import context_at
from layers.fold import fold_norms

from config.options import Options
from model import Block, GPTConfig
from tests.helpers import FLOAT32_ROUNDING, assert_close
from training.lora import LoRALinear

CONFIG = GPTConfig(block_size=8, n_layer=2, n_head=4, n_embd=32, n_kv_head=2)


def perturbed(block):
    """The block with every array moved, so that no norm's weight is 1 and no adapter is 0."""
    leaves, structure = jax.tree.flatten(block)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [x + 0.3 * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, moved)


def with_adapters(block):
    """The block with an adapter beside its queries' layer."""
    stacked = jax.tree.map(lambda x: x[None], block.attn.c_q)  # LoRALinear makes those of all layers at once
    adapted = LoRALinear(stacked, Options(lora_rank=2), jax.random.key(2))
    return eqx.tree_at(lambda block: block.attn.c_q, block, jax.tree.map(lambda x: x[0], adapted))


CASES = {
    "swiglu, layernorm": {},
    "gelu, rmsnorm": dict(mlp="gelu", norm="rmsnorm"),
    "adapters": {},
    "a bias, which is not folded": dict(bias=True),
    "a gate, and weights that are no norm's": dict(attention_gate=True, residual_scalars=True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_folded_block_computes_the_same_and_so_do_its_gradients(case):
    config = replace(CONFIG, **CASES[case])
    block = Block(config, key=jax.random.key(0))
    block = perturbed(with_adapters(block) if case == "adapters" else block)
    x, dy = jax.random.normal(jax.random.key(3), (2, 2, 8, config.n_embd))
    context = context_at(jnp.arange(8)[None], config)._replace(first=jnp.cos(x))

    def value_and_gradients(prepare):
        y, back = jax.vjp(lambda block, x: prepare(block)(x, context), block, x)
        block_gradient, dx = back(dy)
        return {"y": y, "block": block_gradient, "x": dx}

    assert_close(value_and_gradients(fold_norms), value_and_gradients(lambda block: block), FLOAT32_ROUNDING)


@pytest.mark.parametrize("bias", [False, True])
def test_a_norm_without_a_bias_has_no_weight_left(bias):
    block = perturbed(Block(replace(CONFIG, bias=bias), key=jax.random.key(0)))
    folded = fold_norms(block)
    for ours, theirs in ((folded.ln_1, block.ln_1), (folded.ln_2, block.ln_2)):
        assert (ours.weight == (theirs.weight if bias else 1)).all()
