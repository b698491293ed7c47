"""What a step does: decided here once, from the options, the model and the mesh, and then compiled.

    recipe = make_recipe(options, state)
    step = compile_step(state, options)     # step(state, x, y) starts a step and does not wait for its end

A plain step computes loss and gradients of one microbatch. Microbatches, the pipeline, a CPU's smaller parts
and the reduction once a step wrap that from outside, each in one function.
"""

import os
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PRNGKeyArray, Shaped

from config.options import Options
from layers.compute import Here, device, here, memory
from model import GPT
from parallel.pipeline.loop import make_pipeline
from parallel.sharding import batch_layout, batch_sharding, layout, shard
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
        shardings=layout(state),
        batch_sharding=batch_layout(3),
    )


value_and_grad = eqx.filter_value_and_grad(loss_of_microbatch)


def choose_value_and_grad(options: Options, model: GPT) -> Callable:
    """Return the function from (weights, frozen, x, y, key) to the step's loss and gradients."""
    if pipeline := make_pipeline(options):
        return partial(pipelined, pipeline)
    parts = cpu_parts(options, here()) if device().platform == "cpu" else 1
    if options.gradient_accumulation_steps * parts == 1:
        return value_and_grad
    mean = mean_of_microbatches
    if axes := deferred_reduction_axes(model, here()):
        mean = reduce_once(mean, axes)
    return partial(in_parts, mean, parts) if parts > 1 else mean


def mean_of_microbatches(weights: GPT, frozen: GPT, x: Int[Array, "A B T"], y: Int[Array, "A B T"], key):
    """Average loss and gradients, in float32, over A microbatches, one after the other."""

    def add(total, microbatch):
        x, y, key = microbatch
        one = value_and_grad(weights, frozen, x[None], y[None], key)
        return shard(jax.tree.map(jnp.add, total, one)), None

    zero = shard(jax.tree.map(jnp.zeros_like, (jnp.zeros(()), weights)))
    total, _ = lax.scan(add, zero, (x, y, microbatch_keys(key, len(x))))
    return jax.tree.map(lambda sum: sum / len(x), total)


def microbatch_keys(key: PRNGKeyArray | None, A: int) -> Shaped[PRNGKeyArray, " A"] | None:
    """Make a dropout key for each microbatch from the step's. A single microbatch has the step's own."""
    if key is None or A == 1:
        return key if key is None else key[None]
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(A))


def pipelined(pipeline, weights: GPT, frozen: GPT, x: Int[Array, "A B T"], y: Int[Array, "A B T"], key):
    """Let a pipeline's ranks compute the mean over microbatches."""
    return pipeline.mean_gradients(chunked_cross_entropy, weights, frozen, x, y, microbatch_keys(key, len(x)))


def reduce_once(mean: Callable, axes: tuple[str, ...]) -> Callable:
    """Let the devices along these mesh axes each compute `mean` on their rows, and average that once a step.

    Left alone, XLA sums gradients over devices in every microbatch. For GPT-2's five microbatches with
    data:8, each of eight H100 then sends 5.7 GB in a step, as planned, and with one sum 0.9
    (docs/benchmarks.md).
    """
    rows = P(None, axes)
    return jax.shard_map(
        lambda *args: lax.pmean(mean(*args), axes),
        in_specs=(P(), P(), rows, rows, P()),
        out_specs=P(),
        axis_names=set(axes),
        check_vma=False,
    )


# The part of a device's memory that gathered weights and their gradients may take where `fsdp` splits them.
GATHERED_FRACTION = 1 / 8


def deferred_reduction_axes(model: GPT, place: Here) -> tuple[str, ...]:
    """Return the mesh axes whose devices keep their gradients apart until the last microbatch.

    Along `data` each has all the weights anyway. Along `fsdp` each then gathers them once a step, and not a
    layer's at a time in each microbatch, if they and as many gradients take less than GATHERED_FRACTION of
    its memory.
    """
    if place.sizes["tensor"] > 1 and device().platform == "tpu":
        return ()  # XLA crashes there (libtpu 0.0.42.1: Check failed: target.IsManualSubgroup())
    gathered = 2 * 4 * sum(x.size for x in jax.tree.leaves(model)) / place.sizes["tensor"]
    axes = ("data", "fsdp") if gathered < GATHERED_FRACTION * memory() else ("data",)
    return tuple(axis for axis in axes if place.sizes[axis] > 1)


# Tokens of a microbatch on a CPU, beyond which it is cut: smaller temporaries stay in the caches, and the
# kernel has less memory to clear in each step (docs/benchmarks.md).
CPU_TOKENS = 2048


def cpu_parts(options: Options, place: Here) -> int:
    """Return into how many parts a CPU cuts microbatches, of at most CPU_TOKENS tokens, if they divide so."""
    B, T = options.batch_size, options.block_size
    rows = B // (place.sizes["data"] * place.sizes["fsdp"])  # of a device
    return next(n for n in range(1, rows + 1) if rows % n == 0 and (B * T <= n * CPU_TOKENS or n == rows))


def in_parts(mean: Callable, n: int, weights: GPT, frozen: GPT, x, y, key):
    """Cut microbatches into n smaller ones each. Every device of a mesh keeps the rows it has."""

    def cut(x: Int[Array, "A B T"]) -> Int[Array, "A_n B_n T"]:
        A, B, T = x.shape
        return x.reshape(A, B // n, n, T).swapaxes(1, 2).reshape(A * n, B // n, T)

    return mean(weights, frozen, cut(x), cut(y), key)


def compile_step(state: TrainState, options: Options) -> jax.stages.Compiled:
    """Compile `train_step` for a state and options. Return `step(state, x, y)`, which consumes the state.

    The state may be one that is not there, of ShapeDtypeStructs with their shardings. Equinox takes those for
    no arrays, and starts a compiled step in twice the time, so this is `jax.jit` around the same function.
    """
    shape = (options.gradient_accumulation_steps, options.batch_size, options.block_size)
    batch = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(3))
    step = jax.jit(partial(train_step, recipe=make_recipe(options, state)), donate_argnums=0)
    return step.lower(state, batch, batch).compile(compiler_options=compiler_options())


# XLA's options for the step on several devices, by platform.
MULTI_DEVICE_OPTIONS: dict[str, dict[str, str | bool]] = {
    # XLA goes on with other work while it communicates only if asked to, as NVIDIA and MaxText do
    # (docs.nvidia.com/jax-toolbox, "Tips for High-Performance LLMs with JAX and XLA").
    "gpu": {"xla_gpu_enable_latency_hiding_scheduler": True},
    # Without it, XLA cuts products into parts that pass around a ring: with fsdp on eight v5e, as planned,
    # that takes GPT-2 longer, with more memory and more to send (docs/benchmarks.md). Google's recipe for
    # MaxDiffusion's SDXL on v5p has this; EasyLM's for Llama on v4 ask for rings. With `tensor` it was not
    # planned.
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
}


def compiler_options() -> dict[str, str | bool]:
    """Return XLA's options for the step on this mesh, without those that the user has set."""
    several = jax.sharding.get_abstract_mesh().size > 1
    options = MULTI_DEVICE_OPTIONS.get(device().platform, {}) if several else {}
    by_user = os.environ.get("XLA_FLAGS", "") + os.environ.get("LIBTPU_INIT_ARGS", "")
    return {name: value for name, value in options.items() if name not in by_user}
