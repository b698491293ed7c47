"""The batches of a run on many processes: each makes the whole batch, and its devices take their rows."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from config.options import Options
from data.batches import Batches
from data.dataset import Dataset
from parallel.sharding import batch_sharding


class StepBatches:
    """The batches of a run's steps: `batches(i)` returns x and y of step i, int32 (A, B, T)."""

    def __init__(self, options: Options, dataset: Dataset):
        A, B, T = self.shape = (options.gradient_accumulation_steps, options.batch_size, options.block_size)
        self.rows = Batches(dataset, "train", A * B, T, options.seed, options.sampling)
        self.epoch = self.rows.epoch

    def __call__(self, i: int) -> tuple[Int[Array | np.ndarray, "A B T"], Int[Array | np.ndarray, "A B T"]]:
        x, y = self.rows(i)
        return distribute(x.reshape(self.shape)), distribute(y.reshape(self.shape))


def distribute(rows: Int[np.ndarray, "... B T"]) -> Int[Array | np.ndarray, "... B T"]:
    """Give the devices of this process their rows of a batch, which is the same in all processes."""
    if jax.process_count() == 1:
        return rows  # a compiled function takes it from here faster than any call of ours
    return jax.make_array_from_callback(rows.shape, batch_sharding(rows.ndim), rows.__getitem__)


def example_batch(*shape: int) -> Int[Array, "..."]:
    """Make a batch of that shape, laid out as all batches are, for a function to be compiled with."""
    return jnp.zeros(shape, jnp.int32, device=batch_sharding(len(shape)))
