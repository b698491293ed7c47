"""The floating-point operations of a training step, as XLA counts them."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from config.options import Options
from model import GPTConfig
from parallel.mesh import one_cpu
from training.lora import partition_trainable
from training.state import create_state


def counted_flops(config: GPTConfig, options: Options) -> float | None:
    """Return the floating-point operations of one step's loss and gradients, on all devices, as XLA counts.

    What `remat` does twice counts twice. XLA counts a loop's body once, and nothing of a kernel that is not
    its own. So it counts one sequence, on a CPU, with the layers unrolled and the logits in one piece, and
    nothing is compiled. None where JAX has no CPU beside its accelerator.
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
    if counted is None:
        return None
    return counted["flops"] * options.gradient_accumulation_steps * options.batch_size
