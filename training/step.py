"""One step of training: loss, gradients, update. Compiled once, and the state's memory is used again.

    step = compile_step(state, options)
    state, metrics = step(state, x, y)     # x, y: (A, B, T) int32, A microbatches

`train_step` is an `eqx.filter_jit` function, and a call of it waits for the step's end. The compiled step
only starts it, in half a millisecond, and the loop goes on while an accelerator works.
"""

import os
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from config.options import Options
from layers.device import device, memory
from model import GPT
from parallel.pipeline.loop import Pipeline, make_pipeline
from parallel.sharding import batch_sharding, shard, shard_batch
from training.lora import partition_trainable
from training.loss import cross_entropy
from training.optimizer import learning_rate, make_optimizer
from training.state import TrainState

# Tokens of a microbatch on a CPU, beyond which it is cut. The baby GPT's step of 16384 tokens takes two
# thirds of the time in 8 parts, and a seventh of the memory, which the kernel clears in each step unless it
# is little (`reuse_freed_memory` in runs/hardware.py).
CPU_TOKENS = 2048

# The part of a device's memory that whole weights and their gradients may take where `fsdp` splits them.
WHOLE = 1 / 8

# XLA's options for the step on several devices, by platform.
SEVERAL: dict[str, dict[str, str | bool]] = {
    # XLA goes on with other work while it communicates only if asked to, as NVIDIA and MaxText do
    # (docs.nvidia.com/jax-toolbox, "Tips for High-Performance LLMs with JAX and XLA").
    "gpu": {"xla_gpu_enable_latency_hiding_scheduler": True},
    # Without it, XLA cuts products into parts that pass around a ring: with fsdp on eight v5e, as planned,
    # that takes GPT-2 longer, with more memory and more to send (docs/benchmarks.md). Google's recipe for
    # MaxDiffusion's SDXL on v5p has this; EasyLM's for Llama on v4 ask for rings. With `tensor` it was not
    # planned.
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
}


@eqx.filter_jit(donate="all")
def train_step(
    state: TrainState, x: Int[Array, "A B T"], y: Int[Array, "A B T"], options: Options
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Return the state one step later, and the step's `loss`, `grad_norm` (before clipping) and `lr`.

    The loss has z_loss in it; evaluations leave that out.
    """
    x, y = shard_batch(x), shard_batch(y)
    key = jax.random.fold_in(jax.random.key(options.seed), 1 + state.step) if options.dropout else None
    pipeline = make_pipeline(options)
    if device().platform == "cpu" and pipeline is None:  # a pipeline's microbatches are the user's choice
        x, y = split_for_cpu_cache(x), split_for_cpu_cache(y)
    loss, gradients = mean_gradients(state.model, x, y, key, pipeline, options.z_loss)
    weights, frozen = partition_trainable(state.model)
    updates, opt_state = make_optimizer(options).update(gradients, state.opt_state, weights)  # ty: ignore[invalid-argument-type]
    model = eqx.combine(eqx.apply_updates(weights, updates), frozen)
    metrics = {
        "loss": loss,
        "grad_norm": optax.tree.norm(gradients),
        "lr": learning_rate(options, state.step),
    }
    return shard(TrainState(model, opt_state, state.step + 1)), metrics


def compile_step(state: TrainState, options: Options) -> jax.stages.Compiled:
    """Compile `train_step` for a state and options. Return `step(state, x, y)`, which consumes the state.

    The state may be one that is not there, of ShapeDtypeStructs with their shardings. Equinox takes those for
    no arrays, and starts a compiled step in twice the time, so this is `jax.jit` around the same function.
    """
    shape = (options.gradient_accumulation_steps, options.batch_size, options.block_size)
    batch = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(3))
    step = jax.jit(partial(train_step, options=options), donate_argnums=0)
    return step.lower(state, batch, batch).compile(compiler_options=compiler_options())


def compiler_options() -> dict[str, str | bool]:
    """Return XLA's options for the step on this mesh, without those that the user has set."""
    several = jax.sharding.get_abstract_mesh().size > 1
    options = SEVERAL.get(device().platform, {}) if several else {}
    by_user = os.environ.get("XLA_FLAGS", "") + os.environ.get("LIBTPU_INIT_ARGS", "")
    return {name: value for name, value in options.items() if name not in by_user}


def mean_gradients(
    model: GPT,
    x: Int[Array, "A B T"],
    y: Int[Array, "A B T"],
    key: PRNGKeyArray | None,
    pipeline: Pipeline | None = None,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], GPT]:
    """Return the loss and its gradients, averaged in float32 over the A microbatches.

    The microbatches are computed one by one, or by a pipeline's ranks. What is not trained has None for its
    gradient.
    """
    A = len(x)
    weights, frozen = partition_trainable(model)
    keys = microbatch_keys(key, A)
    if pipeline:
        return pipeline.mean_gradients(partial(mean_nll, z_loss=z_loss), weights, frozen, x, y, keys)

    def gradients(weights, frozen, x, y, key):
        def loss(weights):
            return mean_loss(eqx.combine(weights, frozen), x, y, key, z_loss)

        return eqx.filter_value_and_grad(loss)(weights)

    if A == 1:
        return gradients(weights, frozen, x[0], y[0], key)

    def mean(weights, frozen, x, y, keys):
        def add(total, microbatch):
            one = gradients(weights, frozen, *microbatch)
            return shard(jax.tree.map(jnp.add, total, one)), None

        zero = shard(jax.tree.map(jnp.zeros_like, (jnp.zeros(()), weights)))
        total, _ = lax.scan(add, zero, (x, y, keys))
        return jax.tree.map(lambda sum: sum / A, total)

    axes = axes_apart(model)
    compute = on_own_rows(mean, axes) if axes else mean
    return compute(weights, frozen, x, y, keys)


def on_own_rows(mean: Callable, axes: tuple[str, ...]) -> Callable:
    """Have the devices along these mesh axes each compute `mean` on their rows, and take the mean of that.

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


def axes_apart(model: GPT) -> tuple[str, ...]:
    """Return the mesh axes whose devices keep their gradients apart until the last microbatch.

    Along `data` each has all the weights anyway. Along `fsdp` each then gathers them once a step, and not a
    layer's at a time in each microbatch, if they and as many gradients take less than WHOLE of its memory.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return ()
    whole = 2 * 4 * sum(x.size for x in jax.tree.leaves(model)) / mesh.shape["tensor"]
    axes = ("data", "fsdp") if whole < WHOLE * memory() else ("data",)
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def microbatch_keys(key: PRNGKeyArray | None, A: int) -> Shaped[PRNGKeyArray, " A"] | None:
    """Make a dropout key for each microbatch from the step's. A single microbatch has the step's own."""
    if key is None or A == 1:
        return key if key is None else key[None]
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(A))


def split_for_cpu_cache(x: Int[Array, "A B T"]) -> Int[Array, "A_n B_n T"]:
    """Cut microbatches into more and smaller ones of at most CPU_TOKENS tokens, if they divide so.

    Every device of a mesh keeps the rows it has.
    """
    A, B, T = x.shape
    mesh = jax.sharding.get_abstract_mesh()
    rows = B if mesh.empty else B // (mesh.shape["data"] * mesh.shape["fsdp"])  # of a device
    n = next(n for n in range(1, rows + 1) if rows % n == 0 and (B * T <= n * CPU_TOKENS or n == rows))
    return x.reshape(A, B // n, n, T).swapaxes(1, 2).reshape(A * n, B // n, T)


def mean_loss(
    model: GPT,
    x: Int[Array, "B T"],
    y: Int[Array, "B T"],
    key: PRNGKeyArray | None = None,
    z_loss: float = 0.0,
) -> Float[Array, ""]:
    """Return the mean cross entropy of the next tokens y, and z_loss; a `key` turns dropout on."""
    return mean_nll(model, model.features(x, key=key), y, z_loss)


def mean_nll(
    model: GPT, features: Float[Array, "B T D"], y: Int[Array, "B T"], z_loss: float = 0.0
) -> Float[Array, ""]:
    """Return the mean cross entropy of the next tokens y, and z_loss, given the features before the head."""
    config = model.config
    return cross_entropy(features, model.head, y, config.dtype, config.logit_softcap, z_loss)
