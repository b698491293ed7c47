"""A step's loss is the mean over its targets, however microbatches and devices share them."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from config.options import Options
from parallel.mesh import batch_sharding, make_mesh
from tests.helpers import FLOAT32_ROUNDING, assert_close, mean_gradients, named_arrays, random_batch, slowly
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
def step(A: int, mesh: str, schedule: str = "1f1b"):
    """Return loss and gradients, by name, of the batch as A microbatches."""
    options = replace(TINY, batch_size=8 // A, gradient_accumulation_steps=A, pipeline_schedule=schedule)
    with jax.set_mesh(make_mesh(mesh)):
        model = create_state(model_config(options, V), options).model
        rows = (x.reshape(A, 8 // A, -1) for x in batch())
        x, y = jax.device_put(tuple(rows), batch_sharding(3))
        loss, gradients = jax.jit(mean_gradients, static_argnums=0)(options, model, x, y)
        return float(loss), named_arrays(gradients)


def test_the_loss_is_that_of_numpy():
    model = create_state(model_config(TINY, V), TINY).model
    x, y = batch()
    logits = np.asarray(jax.jit(type(model).__call__)(model, x), np.float64)
    nats = (
        np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, np.maximum(y, 0)[..., None], -1)[..., 0]
    )
    np.testing.assert_allclose(step(1, "data:1")[0], nats[y >= 0].mean(), rtol=FLOAT32_ROUNDING)


@pytest.mark.parametrize(
    "A, mesh",
    [
        (2, "data:2,fsdp:2"),
        (4, "stage:2,data:2"),
        *slowly((4, "data:1"), (8, "data:1"), (4, "data:2"), (1, "data:4"), (2, "fsdp:4"), (4, "tensor:2")),
        *slowly((2, "data:2,tensor:2"), (4, "stage:2"), (2, "stage:2,fsdp:2")),
    ],
)
def test_microbatches_and_meshes_have_the_loss_and_gradients_of_one_batch(A, mesh):
    (loss, gradients), (expected, expected_gradients) = step(A, mesh), step(1, "data:1")
    np.testing.assert_allclose(loss, expected, rtol=FLOAT32_ROUNDING)
    assert_close(gradients, expected_gradients)


@pytest.mark.slow
def test_every_schedule_has_them():
    loss, gradients = step(4, "stage:2", "gpipe")
    np.testing.assert_allclose(loss, step(1, "data:1")[0], rtol=FLOAT32_ROUNDING)
    assert_close(gradients, step(1, "data:1")[1])


def test_a_step_without_targets_has_no_loss_and_no_gradient():
    options = replace(TINY, batch_size=2, gradient_accumulation_steps=2)
    model = create_state(model_config(options, V), options).model
    x = np.zeros((2, 2, 8), np.int32)
    loss, gradients = jax.jit(mean_gradients, static_argnums=0)(options, model, x, np.full_like(x, -1))
    assert loss == 0 and not any(array.any() for array in named_arrays(gradients).values())
