"""Compare the memory that variants of a training step need: `python bench.py [config] --memory`.

The figures are XLA's own plan of the compiled step: its temporaries, that is all but the weights, the
optimizer's state and the batch, which are as large in every variant. No step is run and no state is made, so
a step too large for this machine can be planned as well. Every variant trains on the same tokens per step, in
the microbatches that it names: those that train.py would cut on a CPU are not.
"""

import math
from dataclasses import replace
from unittest import mock

from config.options import Options
from layers.compute import device
from model import GPTConfig
from training import recipe
from training.state import model_config, state_shapes

PARTS = 4  # microbatches that one is cut into, where a variant does that
CHUNKS = 16  # of the loss


def report_memory(config: GPTConfig, options: Options) -> None:
    """Print a line for each variant as soon as it is compiled."""
    print(f"\n{'':52}{'temporaries, MB':>17}{'of the first':>14}")
    first = None
    for name, changes, n_chunks in variants(config, options):
        plan = planned(config, replace(options, **changes), n_chunks)
        first = first or plan.temp_size_in_bytes
        needed = f"{plan.temp_size_in_bytes / 1e6:17,.1f}{plan.temp_size_in_bytes / first:14.0%}"
        print(f"{name:52}{needed}", flush=True)
    print(
        f"\nweights, optimizer state and batch: {plan.argument_size_in_bytes / 1e6:,.0f} MB in every variant"
    )


def variants(config: GPTConfig, options: Options) -> list[tuple[str, dict, int | None]]:
    """List the variants: name, options changed, and chunks of the loss (None: as training has them)."""
    dots, block = dict(remat="dots"), dict(remat="block")
    rows: list[tuple[str, dict, int | None]] = [("as given", {}, None)]
    if device().platform == "cpu" and not 0 < config.compute.unroll < config.n_layer:
        rows.append(("layers in a loop, as remat has them on a CPU", dict(unroll=1), None))
    rows += [("remat=dots", dots, None), ("remat=block", block, None)]
    rows += [("loss in one chunk", {}, 1), (f"loss in {CHUNKS} chunks", {}, CHUNKS)]
    if options.batch_size % PARTS == 0:
        A, B = options.gradient_accumulation_steps * PARTS, options.batch_size // PARTS
        parts = dict(gradient_accumulation_steps=A, batch_size=B)
        name = f"{A} microbatches of {B}"
        rows += [(name, parts, None), (f"{name}, remat=dots", parts | dots, None)]
        rows += [(f"{name}, remat=block", parts | block, None)]
        rows += [(f"{name}, remat=block, loss in {CHUNKS} chunks", parts | block, CHUNKS)]
    return rows


def planned(config: GPTConfig, options: Options, n_chunks: int | None):
    """Return XLA's memory analysis of the step with these options."""
    config = model_config(options, config.vocab_size, config.eot)
    if n_chunks is not None:  # not an option of training, which would gain nothing by other values
        logits = options.batch_size * options.block_size * config.vocab_size
        config = replace(config, compute=replace(config.compute, max_logits=-(-logits // n_chunks)))
    shapes = state_shapes(config, options)
    with mock.patch.object(recipe, "CPU_TOKENS", math.inf):
        return recipe.compile_step(shapes, options).memory_analysis()
