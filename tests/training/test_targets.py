"""A step's loss is the mean over its targets, however microbatches and devices share them."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from config.options import Options
from parallel.mesh import batch_sharding, make_mesh
from tests.helpers import FLOAT32_ROUNDING, assert_close, mean_gradients, named_arrays, random_batch, slowly
from tests.models import forward
from training.state import create_state, model_config

V = 65
TINY = replace(Options(), n_layer=2, n_head=2, n_embd=32, block_size=8, unroll=1, dtype="float32")


@cache
def batch() -> tuple[np.ndarray, np.ndarray]:
    """Eight rows with 0 to 8 targets each: the first two rows, a microbatch or a device's, have none."""
    x, y = random_batch(replace(TINY, batch_size=8, gradient_accumulation_steps=1), V)[:, 0]
    counts = np.array([0, 0, 8, 1, 3, 0, 5, 8])
    return x, np.where(np.arange(8) < counts[:, None], y, -1)


@cache
def step(A: int, mesh: str, schedule: str = "1f1b", targets: bool = True):
    """Return loss and gradients of the batch as A microbatches, with its targets or without any."""
    options = replace(TINY, batch_size=8 // A, gradient_accumulation_steps=A, pipeline_schedule=schedule)
    with jax.set_mesh(make_mesh(mesh)):
        model = create_state(model_config(options, V), options).model
        rows = (x.reshape(A, 8 // A, -1) for x in batch())
        x, y = jax.device_put(tuple(rows), batch_sharding(3))
        y = y if targets else jnp.full_like(y, -1)
        loss, gradients = jax.jit(mean_gradients, static_argnums=0)(options, model, x, y)
        return float(loss), named_arrays(gradients)


def test_the_loss_is_that_of_numpy():
    model = create_state(model_config(TINY, V), TINY).model
    x, y = batch()
    logits = np.asarray(forward(model, x), np.float64)
    label = np.take_along_axis(logits, np.maximum(y, 0)[..., None], -1)[..., 0]
    nats = np.log(np.exp(logits).sum(-1)) - label
    np.testing.assert_allclose(step(1, "data:1")[0], nats[y >= 0].mean(), rtol=FLOAT32_ROUNDING)


@pytest.mark.parametrize(
    "A, mesh, schedule",
    [
        (4, "data:1", "1f1b"),
        *slowly((2, "data:2,fsdp:2", "1f1b"), (1, "data:4", "1f1b"), (4, "tensor:2", "1f1b")),
        *slowly((4, "stage:2,data:2", "1f1b"), (2, "stage:2,fsdp:2", "1f1b"), (4, "stage:2", "gpipe")),
    ],
)
def test_microbatches_and_meshes_have_the_loss_and_gradients_of_one_batch(A, mesh, schedule):
    (loss, gradients), (expected, expected_gradients) = step(A, mesh, schedule), step(1, "data:1")
    np.testing.assert_allclose(loss, expected, rtol=FLOAT32_ROUNDING)
    assert_close(gradients, expected_gradients)


def test_a_step_without_targets_has_no_loss_and_no_gradient():
    loss, gradients = step(4, "data:1", targets=False)
    assert loss == 0 and not any(array.any() for array in gradients.values())
