"""Many processes, each with devices of its own, that train one model together."""

import jax
import numpy as np

from parallel.sharding import over_rows


def rows_here(B: int) -> np.ndarray | slice:
    """Which of the B rows of a batch the devices of this process hold, in order."""
    if jax.process_count() == 1:
        return slice(None)
    held = over_rows(1 + 1).addressable_devices_indices_map((B, 1)).values()
    return np.unique(np.concatenate([np.arange(B)[rows] for rows, _ in held]))


def assemble(rows: np.ndarray, B: int) -> jax.Array | np.ndarray:
    """The batch (..., B, T) of which every process gives the rows that it holds, (..., B here, T)."""
    if jax.process_count() == 1:
        return rows  # a compiled function takes it from here faster than any call of ours
    shape = (*rows.shape[:-2], B, rows.shape[-1])
    return jax.make_array_from_process_local_data(over_rows(rows.ndim), rows, shape)
