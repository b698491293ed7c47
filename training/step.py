"""One step of training: loss, gradients, update. Compiled once, and the state's memory is used again.

    state = create_state(config, options)
    step = compile_step(state, options)
    state, metrics = step(state, x, y)          # x, y: (A, B, T) int32, A microbatches

Every leaf of the state is an array, so `jax.jit` takes it as it is and starts a step in 0.2 ms, where
`eqx.filter_jit` would wait for the step's end.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

from config.options import Options, UserError
from model import GPT, GPTConfig
from parallel.mesh import one_cpu
from parallel.pipeline import Pipeline, pipeline_of
from parallel.sharding import on_mesh, over_rows, shard
from training.lora import add_adapters, trained
from training.loss import cross_entropy
from training.optimizer import learning_rate, make_optimizer

# Tokens of a microbatch on a CPU, beyond which it is cut. The baby GPT's step of 16384 tokens takes two
# thirds of the time in 8 parts, and a seventh of the memory, all of which the kernel clears in each step.
CPU_TOKENS = 2048


class TrainState(eqx.Module):
    """All that training changes. The data order and the dropout follow from `step` and the seed."""

    model: GPT  # with adapters, these alone are trained (training/lora.py)
    opt_state: PyTree  # of what is trained
    step: Int[Array, ""]


def model_config(options: Options, vocab_size: int, eot: int | None = None) -> GPTConfig:
    """The model that `options` describe, with what they leave to the platform decided. Raises UserError.

    `eot` is the vocabulary's end-of-text token, if it has one; only `document_mask` needs it.
    """
    on_cpu, on_gpu = jax.default_backend() == "cpu", jax.default_backend() == "gpu"
    dtype = options.dtype if options.dtype != "auto" else "float32" if on_cpu else "bfloat16"
    fused = on_gpu and dtype == "bfloat16"
    if options.attention == "cudnn" and not fused:
        raise UserError("attention=cudnn needs an NVIDIA GPU and dtype=bfloat16; use attention=auto")
    if options.document_mask and eot is None:
        raise UserError(
            f"document_mask=True needs an end-of-text token, and dataset={options.dataset} has none: "
            "leave it out, or use a data set of GPT-2 tokens"
        )
    # XLA merges recomputed operations with the first ones unless a loop keeps them apart: its CPU compiler
    # drops the barriers that do so elsewhere.
    loop = on_cpu and options.remat != "none" and not 0 < options.unroll < options.n_layer
    try:
        return GPTConfig(
            vocab_size=vocab_size,
            eot=eot if options.document_mask else None,
            dtype=dtype,
            attention=options.attention if options.attention != "auto" else "cudnn" if fused else "einsum",
            unroll=1 if loop else options.unroll,
            **{name: getattr(options, name) for name in SHAPE + ("dropout", "remat")},
        )
    except ValueError as error:
        raise UserError(str(error)) from None


SHAPE = (  # the options that say which arrays a model has and what they mean; a resumed run agrees on them
    *("block_size", "n_layer", "n_head", "n_kv_head", "n_embd", "n_hidden", "position"),
    *("rope_theta", "rope_scaling", "norm", "norm_eps", "mlp", "bias", "qk_norm", "tie_embeddings"),
)


def shape_options(config: GPTConfig) -> dict[str, Any]:
    """The options that describe a model's shape and vocabulary."""
    return {name: getattr(config, name) for name in (*SHAPE, "vocab_size")}


def create_state(config: GPTConfig, options: Options) -> TrainState:
    """The state before the first step; `options.seed` decides the weights."""

    @jax.jit
    def create():
        return first_state(GPT(config, key=jax.random.fold_in(jax.random.key(options.seed), 0)), options)

    return create()


def state_around(model: GPT, options: Options) -> TrainState:
    """The state before the first step of a model with weights of its own, which is consumed."""
    return jax.jit(partial(first_state, options=options), donate_argnums=0)(model)


def first_state(model: GPT, options: Options) -> TrainState:
    if options.lora_rank:
        model = add_adapters(model, options, jax.random.fold_in(jax.random.key(options.seed), 0))
    opt_state = make_optimizer(options).init(trained(model)[0])
    return shard(TrainState(model, opt_state, jnp.zeros((), jnp.int32)))


def state_shapes(config: GPTConfig, options: Options) -> TrainState:
    """Shapes, dtypes and shardings of the state, which is not made."""
    return on_mesh(eqx.filter_eval_shape(create_state, config, options))


def compile_step(state: TrainState, options: Options) -> jax.stages.Compiled:
    """`train_step` for these options as `step(state, x, y) -> state, metrics`. It consumes the state given.

    The compiled step tells its `cost_analysis()` and `memory_analysis()`.
    """
    shape = (options.gradient_accumulation_steps, options.batch_size, options.block_size)
    batch = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=over_rows(3))
    step = jax.jit(partial(train_step, options=options), donate_argnums=0)  # HLO and traces have its name
    return step.lower(state, batch, batch).compile()


def train_step(
    state: TrainState, x: Int[Array, "A B T"], y: Int[Array, "A B T"], options: Options
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """The state one step later, and the step's `loss`, `grad_norm` (before clipping) and `lr`, in float32."""
    key = jax.random.fold_in(jax.random.key(options.seed), 1 + state.step) if options.dropout else None
    pipeline = pipeline_of(options)
    if jax.default_backend() == "cpu" and not pipeline:  # whose number of microbatches is the user's choice
        x, y = smaller(x), smaller(y)
    loss, gradients = mean_gradients(state.model, x, y, key, pipeline)
    weights, frozen = trained(state.model)
    updates, opt_state = make_optimizer(options).update(gradients, state.opt_state, weights)
    model = eqx.combine(optax.apply_updates(weights, updates), frozen)
    metrics = {
        "loss": loss,
        "grad_norm": optax.tree.norm(gradients),
        "lr": learning_rate(options, state.step),
    }
    return shard(TrainState(model, opt_state, state.step + 1)), metrics


def smaller(x: Int[Array, "A B T"]) -> Int[Array, "A B T"]:
    """Microbatches with the same rows, more and smaller, of at most CPU_TOKENS if they divide so.

    Every device of a mesh keeps the rows it has.
    """
    A, B, T = x.shape
    mesh = jax.sharding.get_abstract_mesh()
    rows = B if mesh.empty else B // (mesh.shape["data"] * mesh.shape["fsdp"])  # of a device
    n = next(n for n in range(1, rows + 1) if rows % n == 0 and (B * T <= n * CPU_TOKENS or n == rows))
    return x.reshape(A, B // n, n, T).swapaxes(1, 2).reshape(A * n, B // n, T)


def mean_gradients(
    model: GPT, x: Int[Array, "A B T"], y: Int[Array, "A B T"], key, pipeline: Pipeline | None = None
):
    """Loss and gradients, averaged in float32 over the A microbatches.

    They are computed one by one, or by a pipeline's ranks. What is not trained has None for its gradient.
    """
    A = len(x)
    weights, frozen = trained(model)
    keys = microbatch_keys(key, A)
    if pipeline:
        return pipeline.mean_gradients(loss_of, weights, frozen, x, y, keys)

    @jax.value_and_grad
    def gradients(weights, x, y, key):
        return mean_loss(eqx.combine(weights, frozen), x, y, key)

    if A == 1:
        return gradients(weights, x[0], y[0], key)

    def add(total, microbatch):
        one = gradients(weights, *microbatch)
        return shard(jax.tree.map(jnp.add, total, one)), None

    zero = shard(jax.tree.map(jnp.zeros_like, (jnp.zeros(()), weights)))
    total, _ = lax.scan(add, zero, (x, y, keys))
    return jax.tree.map(lambda sum: sum / A, total)


def microbatch_keys(key: PRNGKeyArray | None, A: int) -> Shaped[PRNGKeyArray, " A"] | None:
    """A key for the dropout of each microbatch, from that of the step. A single one has the step's own."""
    if key is None or A == 1:
        return key if key is None else key[None]
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(A))


def mean_loss(model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"], key=None) -> Float[Array, ""]:
    """Mean cross entropy of the next tokens y; a `key` turns dropout on."""
    return loss_of(model, model.features(x, key=key), y)


def loss_of(model: GPT, features: Float[Array, "B T D"], y: Int[Array, "B T"]) -> Float[Array, ""]:
    """Mean cross entropy of the next tokens y, given what the head reads."""
    return cross_entropy(features, model.head, y, model.config.dtype)


def compile_loss(model: GPT, options: Options) -> Callable[..., Float[Array, ""]]:
    """`mean_loss` without dropout, for evaluation, as `loss(model, x, y)` with x, y (B, T)."""
    batch = jax.ShapeDtypeStruct((options.batch_size, options.block_size), jnp.int32, sharding=over_rows(2))
    pipeline = pipeline_of(options)
    loss = partial(pipeline.mean_loss, loss_of) if pipeline else mean_loss
    return jax.jit(loss).lower(model, batch, batch).compile()


def counted_flops(config: GPTConfig, options: Options) -> float | None:
    """Floating-point operations of one step's loss and gradients, on all devices, as XLA counts them.

    Those that `remat` has done twice count twice. XLA counts a loop's body once, and none of a kernel that is
    not its own. So it counts one sequence, on a CPU, with the layers unrolled and the logits in one piece,
    and nothing is compiled. None where JAX has no CPU beside its accelerator.
    """
    config = replace(config, unroll=0, attention="einsum")

    def loss(weights, frozen, x, y):
        logits = eqx.combine(weights, frozen)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    try:
        with jax.set_mesh(one_cpu()):
            model = eqx.filter_eval_shape(create_state, config, options).model
            row = jax.ShapeDtypeStruct((1, options.block_size), jnp.int32)
            counted = jax.jit(jax.value_and_grad(loss)).lower(*trained(model), row, row).cost_analysis()
    except RuntimeError:
        return None
    return counted["flops"] * options.gradient_accumulation_steps * options.batch_size
