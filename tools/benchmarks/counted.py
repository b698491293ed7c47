"""What XLA counts of a step, without running it: FLOPs, and the memory of variants that need less."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from config.options import Options
from layers.compute import device
from model import GPTConfig
from parallel.mesh import one_cpu
from parallel.sharding import batch_sharding
from training.lora import partition_trainable
from training.recipe import compile_step, make_recipe, mean_of_microbatches, value_and_grad
from training.state import create_state, model_config, state_shapes
from training.step import train_step

PARTS = 4  # microbatches that one is cut into, where a variant does that
CHUNKS = 16  # of the loss


def report_memory(config: GPTConfig, options: Options) -> None:
    """Print the temporaries that XLA plans: all but the weights, the optimizer's state and the batch.

    No state is made, so that a step too large for this machine can be planned as well.
    """
    print(f"\n{'':52}{'temporaries, MB':>17}{'of the first':>14}")
    first = None
    for name, changes, n_chunks in variants(config, options):
        plan = planned(config, replace(options, **changes), n_chunks)
        first = first or plan.temp_size_in_bytes
        size, share = plan.temp_size_in_bytes / 1e6, plan.temp_size_in_bytes / first
        print(f"{name:52}{size:17,.1f}{share:14.0%}", flush=True)
    size = plan.argument_size_in_bytes / 1e6
    print(f"\nweights, optimizer state and batch: {size:,.0f} MB in every variant")


def variants(config: GPTConfig, options: Options) -> list[tuple[str, dict, int | None]]:
    """List the variants, all of as many tokens: name, options changed, chunks of the loss, if not its own."""
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
    """Return XLA's memory analysis of the step, in the microbatches that these options name."""
    config = model_config(options, config.vocab_size, config.eot)
    if n_chunks is not None:  # not an option of training, which would gain nothing by other values
        logits = options.batch_size * options.block_size * config.vocab_size
        config = replace(config, compute=replace(config.compute, max_logits=-(-logits // n_chunks)))
    shapes = state_shapes(config, options)
    if device().platform != "cpu" or jax.sharding.get_mesh().size > 1:
        return compile_step(shapes, options).memory_analysis()
    # On a CPU that would cut them into smaller ones.
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    gradients = value_and_grad if A == 1 else mean_of_microbatches
    recipe = replace(make_recipe(options, shapes), value_and_grad=gradients)
    batch = jax.ShapeDtypeStruct((A, B, T), jnp.int32, sharding=batch_sharding(3))
    step = jax.jit(partial(train_step, recipe=recipe), donate_argnums=0)
    return step.lower(shapes, batch, batch).compile().memory_analysis()


def counted_flops(config: GPTConfig, options: Options) -> float | None:
    """Return the floating-point operations of a step's loss and gradients on all devices; None without a CPU.

    What `remat` does twice counts twice. XLA counts a loop's body once, and nothing of a kernel that is not
    its own. So it counts one sequence, on a CPU, with the layers unrolled and the logits in one piece.
    """
    config = replace(config, compute=replace(config.compute, unroll=0, attention="einsum"))

    def loss(weights, frozen, x, y):
        logits = eqx.combine(weights, frozen)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    try:
        with jax.set_mesh(one_cpu()):
            weights, frozen = partition_trainable(eqx.filter_eval_shape(create_state, config, options).model)
            row = jax.ShapeDtypeStruct((1, options.block_size), jnp.int32)
            counted = jax.jit(jax.value_and_grad(loss)).lower(weights, frozen, row, row).cost_analysis()
    except RuntimeError:
        return None
    sequences = options.gradient_accumulation_steps * options.batch_size
    return counted["flops"] * sequences if counted else None
