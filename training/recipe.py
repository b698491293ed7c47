"""Decide what a step does, from the options, the model and the mesh, and compile it.

    step = compile_step(state, options)     # step(state, x, y) dispatches asynchronously

A plain step computes loss and gradients of one microbatch. The functions below wrap that for several
microbatches, a CPU's smaller parts, and one reduction a step.
"""

import os
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from config.options import Options
from layers.compute import current_mesh, device, memory
from layers.dropout import microbatch_keys
from model import GPT
from parallel.pipeline.loop import make_schedule, pipeline_value_and_grad
from parallel.sharding import batch_shape, shard, state_sharding
from training.chunked_loss import chunked_cross_entropy
from training.lora import trainable
from training.optimizer import make_optimizer
from training.schedule import learning_rate
from training.state import TrainState
from training.step import Recipe, loss_of_microbatch, train_step


def make_recipe(options: Options, state: TrainState) -> Recipe:
    """Decide what a step does on this mesh. Raises UserError for an impossible pipeline."""
    model, trained = state.model, trainable(state.model)
    return Recipe(
        options,
        model.config,
        jax.sharding.get_abstract_mesh(),
        value_and_grad=choose_value_and_grad(options, model),
        optimizer=make_optimizer(options, eqx.partition(model, trained)[0]),
        learning_rate=partial(learning_rate, options),
        trained=trained,
        sharding=state_sharding(state),
    )


microbatch_value_and_grad = eqx.filter_value_and_grad(loss_of_microbatch)


def choose_value_and_grad(options: Options, model: GPT) -> Callable:
    """Return the function from (weights, frozen, x, y, key) to the step's loss and gradients."""
    if schedule := make_schedule(options):
        return partial(pipeline_value_and_grad, schedule, chunked_cross_entropy)
    parts = cpu_parts(options, current_mesh()) if device().platform == "cpu" else 1
    if options.gradient_accumulation_steps * parts == 1:
        return microbatch_value_and_grad
    mean = partial(mean_of_microbatches, parts)
    axes = deferred_reduction_axes(model, current_mesh())
    return reduce_once(mean, axes) if axes else mean


def mean_of_microbatches(
    parts: int, weights: GPT, frozen: GPT, x: Int[Array, "A B T"], y: Int[Array, "A B T"], key
):
    """Average loss and gradients over A microbatches in turn, each cut into `parts`, in float32."""
    x, y = cut(x, parts), cut(y, parts)

    def add(total, microbatch):
        x, y, key = microbatch
        one = microbatch_value_and_grad(weights, frozen, x[None], y[None], key)
        return shard(jax.tree.map(jnp.add, total, one)), None

    zero = shard(jax.tree.map(jnp.zeros_like, (jnp.zeros(()), weights)))
    total, _ = lax.scan(add, zero, (x, y, microbatch_keys(key, len(x))))
    return jax.tree.map(lambda sum: sum / len(x), total)


def reduce_once(mean: Callable, axes: tuple[str, ...]) -> Callable:
    """Wrap `mean` so that each device along the axes computes its rows, and averages once a step.

    XLA alone would sum gradients in every microbatch: six times the traffic for GPT-2 on eight H100s, as
    planned (docs/history.md).
    """
    rows = P(None, axes)
    return jax.shard_map(
        lambda *args: lax.pmean(mean(*args), axes),
        in_specs=(P(), P(), rows, rows, P()),
        out_specs=P(),
        axis_names=set(axes),
        check_vma=False,
    )


GATHERED_FRACTION = 1 / 8  # of a device's memory, for the gathered weights and gradients of `fsdp`


def deferred_reduction_axes(model: GPT, mesh: AbstractMesh) -> tuple[str, ...]:
    """Return the mesh axes over which gradients are summed once a step: `fsdp` only where memory allows."""
    if mesh.shape["tensor"] > 1 and device().platform == "tpu":
        return ()  # XLA crashes there (libtpu 0.0.42.1: Check failed: target.IsManualSubgroup())
    gathered = 2 * 4 * sum(x.size for x in jax.tree.leaves(model)) / mesh.shape["tensor"]
    axes = ("data", "fsdp") if gathered < GATHERED_FRACTION * memory() else ("data",)
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


CPU_TOKENS = 2048  # a CPU cuts larger microbatches, for temporaries that stay in its caches


def cpu_parts(options: Options, mesh: AbstractMesh) -> int:
    """Return into how many parts a CPU cuts a microbatch."""
    B, T = options.batch_size, options.block_size
    rows = B // (mesh.shape["data"] * mesh.shape["fsdp"])  # of a device
    return next(n for n in range(1, rows + 1) if rows % n == 0 and (B * T <= n * CPU_TOKENS or n == rows))


def cut(x: Int[Array, "A B T"], n: int) -> Int[Array, "A_n B_n T"]:
    """Cut each microbatch into n smaller ones. Every device of a mesh keeps its rows."""
    A, B, T = x.shape
    return x.reshape(A, B // n, n, T).swapaxes(1, 2).reshape(A * n, B // n, T)


def compile_step(state: TrainState, options: Options) -> jax.stages.Compiled:
    """Compile `train_step` for a state or its shapes. Return `step(state, x, y)`, which donates the state."""
    batch = batch_shape(options.gradient_accumulation_steps, options.batch_size, options.block_size)
    step = jax.jit(partial(train_step, recipe=make_recipe(options, state)), donate_argnums=0)
    return step.lower(state, batch, batch).compile(compiler_options=compiler_options())


# XLA's options for the step on several devices, by platform.
MULTI_DEVICE_OPTIONS: dict[str, dict[str, str | bool]] = {
    # Communicate while computing, as NVIDIA advises (JAX Toolbox, "Tips for High-Performance LLMs").
    "gpu": {"xla_gpu_enable_latency_hiding_scheduler": True},
    # No products in parts that pass around a ring: slower with fsdp, as planned (docs/history.md).
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
}


def compiler_options() -> dict[str, str | bool]:
    """Return XLA's options for the step, but for those that the user has set."""
    options = MULTI_DEVICE_OPTIONS.get(device().platform, {}) if current_mesh().size > 1 else {}
    by_user = os.environ.get("XLA_FLAGS", "") + os.environ.get("LIBTPU_INIT_ARGS", "")
    return {name: value for name, value in options.items() if name not in by_user}
