"""What XLA counts of a step: FLOPs done twice count twice, and memory is that of the variant named."""

from dataclasses import replace

import pytest

from bench import tokens_per_step
from config.options import Options
from model import GPTConfig
from runs.sizes import flops_per_token
from tests.models import changed
from tools.benchmarks.counted import counted_flops, planned, variants

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


@pytest.mark.parametrize("batch_size, n_rows", [(8, 10), (6, 6)])
def test_variants_of_memory_have_as_many_tokens_and_microbatches_where_the_batch_divides(batch_size, n_rows):
    options = replace(ROW, batch_size=batch_size, gradient_accumulation_steps=2)
    rows = variants(CONFIG, options)
    assert len(rows) == n_rows
    assert {tokens_per_step(replace(options, **changes)) for _, changes, _ in rows} == {2 * batch_size * T}


@pytest.mark.slow
def test_the_loss_is_planned_in_the_chunks_named():
    config = GPTConfig(block_size=64, vocab_size=2000, n_layer=1, n_head=2, n_embd=8)
    options = replace(ROW, n_layer=1, n_head=2, n_embd=8, batch_size=8)
    one, many = (planned(config, options, n).temp_size_in_bytes for n in (1, 16))
    logits = 4 * 8 * 64 * 2000  # bytes, all at once
    assert one - many > 15 / 16 * logits


def test_a_cpu_does_not_cut_the_microbatches_whose_memory_is_planned():
    """Of 64 rows of 64 tokens training on a CPU holds half at once: a part has 2,048 tokens."""
    config = GPTConfig(block_size=64, vocab_size=33, n_layer=1, n_head=2, n_embd=32)
    options = replace(ROW, n_layer=1, n_head=2, n_embd=32, batch_size=64)
    parts = replace(options, batch_size=32, gradient_accumulation_steps=2)
    one, two = (planned(config, x, None).temp_size_in_bytes for x in (options, parts))
    assert two < 0.8 * one
