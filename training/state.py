"""The state that training changes, and how it is made: model, optimizer's state and the step's number."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from config.command_line import UserError
from config.options import SHAPE, VARIANTS, Options
from layers.compute import Compute, device, memory, multiplies_bfloat16
from layers.kernels import fastest_attention
from model import GPT, GPTConfig
from parallel.sharding import shard, with_shardings
from training.lora import add_adapters, partition_trainable
from training.optimizer import make_optimizer


class TrainState(eqx.Module):
    """All that training changes. The data order and the dropout follow from `step` and the seed."""

    model: GPT  # a model with adapters trains these alone (training/lora.py)
    opt_state: PyTree  # holds arrays for what is trained
    step: Int[Array, ""]


def model_config(options: Options, vocab_size: int, eot: int | None = None) -> GPTConfig:
    """Describe the model that `options` ask for, and how the device computes it. Raises UserError."""
    if options.document_mask and eot is None:
        raise UserError(
            f"document_mask=True needs an end-of-text token, and dataset={options.dataset} has none: "
            "leave it out, or use a data set of GPT-2 tokens"
        )
    shape = {name: getattr(options, name) for name in (*SHAPE, "dropout")}
    config_class: type[GPTConfig] = GPTConfig
    if any(shape[name] for name in VARIANTS):
        from variants import VariantConfig as config_class  # here, because a plain run needs no variants
    else:
        shape = {name: value for name, value in shape.items() if name not in VARIANTS}
    try:
        config = config_class(vocab_size=vocab_size, eot=eot if options.document_mask else None, **shape)
    except ValueError as error:
        raise UserError(str(error)) from None
    return replace(config, compute=choose_compute(options, config))


def choose_compute(options: Options, config: GPTConfig) -> Compute:
    """Decide how to compute a model on the device. Raises UserError."""
    on_cpu = device().platform == "cpu"
    dtype = options.dtype
    if dtype == "auto":
        dtype = "bfloat16" if multiplies_bfloat16() else "float32"
    # XLA's CPU compiler drops the barriers that keep recomputed operations apart; a loop keeps them apart.
    unrolled = not 0 < options.unroll < options.n_layer
    loop = on_cpu and options.remat != "none" and unrolled
    return Compute(
        dtype=dtype,
        result="float32" if on_cpu else dtype,  # a CPU takes longer to round than to store
        attention=choose_attention(options, config, dtype),
        unroll=1 if loop else options.unroll,
        remat=options.remat,
        max_logits=Compute.max_logits if on_cpu else memory() // (12 * 2),  # a twelfth, of two bytes each
    )


def choose_attention(options: Options, config: GPTConfig, dtype: str) -> str:
    fastest = fastest_attention(config.block_size, config.head_size, dtype)
    if options.attention == "auto":
        return fastest  # with dropout, for evaluation
    if options.attention != "einsum" and (options.attention != fastest or options.dropout):
        raise UserError(
            f"attention={options.attention} does not suit the device, shape, dtype or dropout; "
            "use attention=auto"
        )
    return options.attention


def shape_options(config: GPTConfig) -> dict[str, Any]:
    """Return the options that describe a model's shape and vocabulary."""
    return {name: getattr(config, name) for name in (*SHAPE, "vocab_size") if hasattr(config, name)}


@eqx.filter_jit
def create_state(config: GPTConfig, options: Options) -> TrainState:
    """Draw the state before the first step, under jit: each device only ever holds its own part of it."""
    return init_state(config.build(jax.random.fold_in(jax.random.key(options.seed), 0)), options)


def init_state(model: GPT, options: Options) -> TrainState:
    """Return the state before the first step of a model that has weights."""
    if options.lora_rank:
        model = add_adapters(model, options, jax.random.fold_in(jax.random.key(options.seed), 0))
    weights, _ = partition_trainable(model)
    opt_state = make_optimizer(options, weights).init(weights)  # ty: ignore[invalid-argument-type]
    return shard(TrainState(model, opt_state, jnp.zeros((), jnp.int32)))


create_state_around = eqx.filter_jit(init_state, donate="all")  # it consumes the model


def state_shapes(config: GPTConfig, options: Options) -> TrainState:
    """Return the shapes, dtypes and shardings of the state, without making it."""
    return with_shardings(eqx.filter_eval_shape(create_state, config, options))
