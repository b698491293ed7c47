"""The memory report: its variants train on the same tokens, and are planned as they say."""

from dataclasses import replace

import pytest

from bench import tokens_per_step
from config.options import Options
from model import GPTConfig
from tools.benchmarks.memory import planned, variants

TINY = dict(n_layer=2, n_head=4, n_embd=32, block_size=16, batch_size=3, gradient_accumulation_steps=2)


def test_microbatches_are_planned_where_the_batch_divides():
    config = GPTConfig(block_size=16, vocab_size=33, n_layer=2, n_head=4, n_embd=32)
    tokens = set()
    for batch_size, n_rows in ((8, 10), (6, 6)):
        options = Options(**TINY | {"batch_size": batch_size})
        rows = variants(config, options)
        assert len(rows) == n_rows
        tokens |= {tokens_per_step(replace(options, **changes)) / batch_size for _, changes, _ in rows}
    assert tokens == {2 * 16}


@pytest.mark.slow
def test_the_loss_is_planned_in_the_chunks_named():
    config = GPTConfig(block_size=64, vocab_size=2000, n_layer=1, n_head=2, n_embd=8)
    shape = dict(n_layer=1, n_head=2, n_embd=8, block_size=64, batch_size=8, gradient_accumulation_steps=1)
    options = Options(**shape)
    one, many = (planned(config, options, n).temp_size_in_bytes for n in (1, 16))
    logits = 4 * 8 * 64 * 2000  # bytes, all at once
    assert one - many > 15 / 16 * logits
