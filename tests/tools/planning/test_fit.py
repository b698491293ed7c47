"""The memory of a step: what XLA plans, what it would need where it has too little, what saves some."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from config.options import Options
from tools.planning.fit import GIB, changes_that_save, memory_of, needed_bytes


@pytest.mark.parametrize(
    "message, gib",
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.20G of 15.75G hbm.", 18.2),
        ("Ran out of memory on HBM: the memory required for temporaries (4.5T) exceeds available", 4608),
        ("INVALID_ARGUMENT: no such thing", None),
    ],
)
def test_a_compiler_out_of_memory_says_how_much_it_would_have_needed(message, gib):
    assert needed_bytes(message) == (gib and int(gib * GIB))


def test_what_saves_memory_trains_on_the_same_tokens_per_step():
    options = Options(batch_size=4, gradient_accumulation_steps=3)
    half = dict(batch_size=2, gradient_accumulation_steps=6)
    quarter = dict(batch_size=1, gradient_accumulation_steps=12)
    assert changes_that_save(options, 1) == [half, quarter, quarter | dict(remat="block")]
    assert changes_that_save(replace(options, batch_size=31, remat="block"), 1) == []
    assert changes_that_save(replace(options, batch_size=31, remat="dots"), 1) == [dict(remat="block")]
    first, *others = changes_that_save(replace(options, batch_size=32), 8)
    assert first == dict(mesh="fsdp:8")
    assert [x["batch_size"] for x in others] == [16, 8, 8]
    assert all(changes["mesh"] == "fsdp:8" for changes in others)
    # 24 devices do not divide a width of 2,048.
    wide = replace(options, batch_size=48, n_embd=2048)
    assert changes_that_save(wide, 24)[0] == dict(batch_size=24, gradient_accumulation_steps=6)
    # A pipeline stays one, and one row is enough for it; what is split already is not planned again.
    assert changes_that_save(replace(options, mesh="stage:8"), 8)[:2] == [half, quarter]
    assert changes_that_save(replace(options, mesh="fsdp:2"), 2)[0] == half


def test_memory_is_of_arguments_results_and_temporaries_and_a_donated_argument_counts_once():
    def sorted_twice(x):
        return jnp.sort(jnp.sort(x)[::-1] * x)

    x = jnp.ones(1000)  # 4,000 bytes
    kept, donated = (
        memory_of(jax.jit(sorted_twice, donate_argnums=which).lower(x).compile()) for which in ((), 0)
    )
    assert kept["temporaries"] > 0 and kept["peak"] - kept["temporaries"] >= 8000
    assert donated["peak"] - donated["temporaries"] == kept["peak"] - kept["temporaries"] - 4000
