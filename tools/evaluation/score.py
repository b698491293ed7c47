"""The exact loss of every row of tokens, for the mean of a split, or to rank HellaSwag's endings."""

import time
from collections.abc import Iterable
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from config.command_line import UserError
from data.batches import Batch
from model import GPT
from parallel.sharding import batch_shape, distribute
from training.chunked_loss import nats_of_rows


def score(
    model: GPT, batches: Iterable[Batch], shape: tuple[int, int], n_targets: int, source: str | Path
) -> tuple[Float[np.ndarray, " R"], float]:
    """Return the sum of -log p over each row's targets, in nats, and the seconds that took once compiled.

    The batches have the `shape` (B, T); the progress bar counts to `n_targets`. Raises UserError, which names
    the `source`, for tokens that the model does not know.
    """
    B, T = shape
    batch = batch_shape(B, T)
    compiled = jax.jit(score_rows).lower(model, batch, batch).compile()
    nats = []
    quiet = True if jax.process_index() > 0 else None  # None: only if stderr is no terminal
    start = time.perf_counter()
    with tqdm(total=n_targets, unit="token", unit_scale=True, leave=False, disable=quiet) as bar:
        for x, y in batches:
            if (largest := max(x.max(), y.max())) >= (V := model.config.vocab_size):
                raise UserError(f"{source}: token {largest} is not of the model's vocabulary of {V}")
            nats.append(compiled(model, distribute(x), distribute(y)))
            bar.update((y >= 0).sum())
    return np.concatenate([np.asarray(rows) for rows in nats]), time.perf_counter() - start


def score_rows(model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"]) -> Float[Array, " B"]:
    """Return the sum of -log p over each row's targets, replicated, so that every process has all of it."""
    nats = nats_of_rows(model.features(x), model.head, y, model.config.compute)
    return eqx.filter_shard(nats, PartitionSpec())
