"""One step of training: loss and gradients, update, new state.

    recipe = make_recipe(options, state)                 # training/recipe.py
    state, metrics = train_step(state, x, y, recipe)     # x, y: (A, B, T) int32, A microbatches

train.py calls training/recipe.py's `compile_step(state, options)`, which does both, and compiles.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import optax
from jax.sharding import AbstractMesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from config.options import Options
from model import GPT, GPTConfig
from training.chunked_loss import chunked_cross_entropy
from training.state import TrainState


@dataclass(frozen=True)
class Recipe:
    """Says what a step does. training/recipe.py decides it once."""

    options: Options
    config: GPTConfig
    mesh: AbstractMesh
    # The rest follows from these three, and is not compared: equal recipes compile once.
    # (weights, frozen, x, y, key) -> (loss, gradients), made around `loss_of_microbatch`
    value_and_grad: Callable = field(compare=False)
    optimizer: optax.GradientTransformation = field(compare=False)
    learning_rate: Callable = field(compare=False)  # step number -> rate, for the metrics
    trained: Any = field(compare=False)  # a filter for the weights that the step changes
    sharding: Any = field(compare=False)  # of the state


@eqx.filter_jit(donate="all")
def train_step(
    state: TrainState, x: Int[Array, "A B T"], y: Int[Array, "A B T"], recipe: Recipe
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Return the next state, and this step's `loss`, `grad_norm` (before clipping) and `lr`.

    A direct call donates `state`, `x` and `y`: do not use them again. A recipe holds no arrays.
    """
    weights, frozen = eqx.partition(state.model, recipe.trained)
    dropout, seed = recipe.options.dropout, recipe.options.seed
    # Each step has its own dropout key, from the seed and its number. Number 0 drew the initial weights.
    key = jax.random.fold_in(jax.random.key(seed), 1 + state.step) if dropout else None
    # The gradient of `loss_of_microbatch`, averaged over the A microbatches and all devices.
    loss, gradients = recipe.value_and_grad(weights, frozen, x, y, key)
    with jax.named_scope("optimizer"):  # names it in profiles
        # Clipping, then AdamW's or Muon's direction, weight decay, and the scheduled rate.
        updates, opt_state = recipe.optimizer.update(gradients, state.opt_state, weights)
        model = eqx.combine(eqx.apply_updates(weights, updates), frozen)
    metrics = {
        "loss": loss,
        "grad_norm": optax.tree.norm(gradients),
        "lr": recipe.learning_rate(state.step),
    }
    return eqx.filter_shard(TrainState(model, opt_state, state.step + 1), recipe.sharding), metrics


def mean_loss(
    model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"], key: PRNGKeyArray | None = None
) -> Float[Array, ""]:
    """Return the mean cross entropy of the next tokens, y, in nats."""
    return chunked_cross_entropy(model.features(x, key=key), model.head, y, model.config.compute)


def loss_of_microbatch(weights: GPT, frozen: GPT, x: Int[Array, "1 B T"], y: Int[Array, "1 B T"], key):
    """Return the mean loss of one microbatch, A = 1. Its gradient is taken with respect to `weights`."""
    # Each of the two models has None where the other has an array; only LoRA freezes any.
    return mean_loss(eqx.combine(weights, frozen), x[0], y[0], key)
