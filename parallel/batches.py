"""The batches of a run on many processes: each process reads and feeds the rows that its devices hold."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from config.options import Options
from data.batches import Batches
from data.token_files import Dataset
from parallel.sharding import batch_sharding


class StepBatches:
    """The batches of a run's steps: `batches(i)` returns x and y of step i, int32 (A, B, T)."""

    def __init__(self, options: Options, dataset: Dataset):
        self.shape = (options.gradient_accumulation_steps, options.batch_size, options.block_size)
        A, B, T = self.shape
        self.rows = Batches(dataset, "train", A * B, T, options.seed, options.sampling)
        self.here = np.arange(A * B).reshape(A, B)[:, rows_here(B)].ravel()
        self.epochs = options.sampling == "epoch"

    def __call__(self, i: int) -> tuple[Int[Array | np.ndarray, "A B T"], Int[Array | np.ndarray, "A B T"]]:
        A, B, T = self.shape
        x, y = self.rows(i, self.here)
        return assemble(x.reshape(A, -1, T), B), assemble(y.reshape(A, -1, T), B)

    def epoch(self, i: int) -> float | None:
        """Return how many times the steps before i went through the data; None for random windows."""
        return self.rows.epoch(i) if self.epochs else None


def rows_here(B: int) -> np.ndarray | slice:
    """Return which of the B rows of a batch the devices of this process hold, in order."""
    if jax.process_count() == 1:
        return slice(None)
    held = batch_sharding(2).addressable_devices_indices_map((B, 1)).values()
    return np.unique(np.concatenate([np.arange(B)[index[0]] for index in held if index is not None]))


def assemble(rows: np.ndarray, B: int) -> jax.Array | np.ndarray:
    """Make the batch (..., B, T) of which every process gives the rows that it holds, (..., B here, T)."""
    if jax.process_count() == 1:
        return rows  # a compiled function takes it from here faster than any call of ours
    shape = (*rows.shape[:-2], B, rows.shape[-1])
    return jax.make_array_from_process_local_data(batch_sharding(rows.ndim), rows, shape)


def example_batch(*shape: int) -> Int[Array, "..."]:
    """Make a batch of that shape, laid out as all batches are, for a function to be compiled with."""
    return jnp.zeros(shape, jnp.int32, device=batch_sharding(len(shape)))
