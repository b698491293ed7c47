"""One step of training: loss and gradients, update, new state.

    recipe = make_recipe(options, state)                 # training/recipe.py
    state, metrics = train_step(state, x, y, recipe)     # x, y: (A, B, T) int32, A microbatches

A call of `train_step` waits for the step's end. The training loop calls the step that `compile_step` returns:
it only starts the step, and the loop goes on while an accelerator works.
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
    """What a step does, decided once. Equal options, models and meshes make equal recipes, compiled once."""

    options: Options
    config: GPTConfig
    mesh: AbstractMesh
    value_and_grad: Callable = field(compare=False)  # (weights, frozen, x, y, key) -> (loss, gradients)
    optimizer: optax.GradientTransformation = field(compare=False)
    learning_rate: Callable = field(compare=False)  # of a step's number
    trained: Any = field(compare=False)  # a filter: the weights that the step changes
    shardings: Any = field(compare=False)  # of the state
    batch_sharding: Any = field(compare=False)


@eqx.filter_jit(donate="all")
def train_step(
    state: TrainState, x: Int[Array, "A B T"], y: Int[Array, "A B T"], recipe: Recipe
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Return the state one step later, and the step's `loss`, `grad_norm` (before clipping) and `lr`."""
    weights, frozen = eqx.partition(state.model, recipe.trained)
    x, y = eqx.filter_shard((x, y), recipe.batch_sharding)
    dropout, seed = recipe.options.dropout, recipe.options.seed
    key = jax.random.fold_in(jax.random.key(seed), 1 + state.step) if dropout else None
    loss, gradients = recipe.value_and_grad(weights, frozen, x, y, key)
    updates, opt_state = recipe.optimizer.update(gradients, state.opt_state, weights)
    model = eqx.combine(eqx.apply_updates(weights, updates), frozen)
    metrics = {
        "loss": loss,
        "grad_norm": optax.tree.norm(gradients),
        "lr": recipe.learning_rate(state.step),
    }
    return eqx.filter_shard(TrainState(model, opt_state, state.step + 1), recipe.shardings), metrics


def mean_loss(
    model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"], key: PRNGKeyArray | None = None
) -> Float[Array, ""]:
    """Return the mean cross entropy of the next tokens y; a `key` turns dropout on."""
    return chunked_cross_entropy(model.features(x, key=key), model.head, y, model.config.compute)


def loss_of_microbatch(weights: GPT, frozen: GPT, x: Int[Array, "1 B T"], y: Int[Array, "1 B T"], key):
    """Return the mean loss of one microbatch. `frozen` has what is not trained, and None for what is."""
    return mean_loss(eqx.combine(weights, frozen), x[0], y[0], key)
