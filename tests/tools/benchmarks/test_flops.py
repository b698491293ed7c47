"""What XLA counts of a step: what is computed twice counts twice, what nobody asks for does not count."""

from dataclasses import replace

import pytest

from config.options import Options
from model import GPTConfig
from runs.sizes import flops_per_token
from tests.models import changed
from tools.benchmarks.flops import counted_flops

T, V = 64, 512
ROW = replace(Options(), gradient_accumulation_steps=1, batch_size=1, block_size=T)
CONFIG = changed(GPTConfig(block_size=T, vocab_size=V, n_head=4, mlp="gelu"), dtype="bfloat16")


@pytest.mark.parametrize("remat", ["none", "block"])
def test_what_is_computed_twice_counts_twice(remat):
    D, L = 512, 2
    config = changed(CONFIG, n_layer=L, n_embd=D, unroll=1, remat=remat)
    counted = counted_flops(config, replace(ROW, batch_size=3)) / (3 * T)
    # Each layer's forward pass once more, a third of its products, but for the MLP's last: what it gives is
    # added to the residual stream, and no gradient asks for it.
    again = 2 * L * (12 * D * D - 4 * D * D) + 4 * L * T * D if remat == "block" else 0
    # XLA adds one for each element of what is no product, which at this size is 1%.
    assert 1 < counted / (flops_per_token(config, T) + again) < 1.02


def test_adapters_leave_out_the_gradients_of_the_weights():
    D, r = 256, 8

    def counted(L):
        """FLOPs per token with adapters on the MLPs of L layers."""
        options = replace(ROW, n_layer=L, n_embd=D, lora_rank=r, lora_targets="mlp.c_fc")
        return counted_flops(changed(CONFIG, n_layer=L, n_embd=D), options) / T

    # Each product forth and back to its input; those of the adapters to their weights, too.
    layer, head = 4 * 12 * D * D + 12 * T * D + 6 * r * (D + 4 * D), 4 * V * D
    # What is no product is as much as above, of two thirds as many products.
    assert 1 < (counted(3) - counted(2)) / layer < 1.03
    assert counted(2) / (2 * layer + head) < 1.03
    # Below the first adapter nobody asks for a gradient. JAX 0.12 leaves out the products for it.
    unasked = 3 * 2 * D * D + 4 * 2 * T * D
    assert 1 < counted(2) / (2 * layer + head - unasked)
