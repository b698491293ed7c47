"""The loss of a model on a split of a data set: estimated during training, or exact for every row."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from config.command_line import UserError
from config.options import Options
from data.batches import Batch, Batches
from data.dataset import SPLITS, Dataset
from model import GPT
from parallel.batches import distribute, example_batch
from parallel.pipeline.loop import make_pipeline
from training.chunked_loss import chunked_cross_entropy, nats_of_rows
from training.step import mean_loss

Evaluate = Callable[[GPT, Callable[[], int]], dict[str, float] | None]


def make_evaluate(options: Options, dataset: Dataset, model: GPT) -> Evaluate:
    """Return a function from a model to its mean loss on each split, in nats per token.

    It averages over `eval_iters` random batches, the same at every evaluation, or over the whole split if
    `eval_iters` is -1. Before each batch it calls its second argument, and returns None if that asks it to
    stop (runs/process.py).
    """
    B, T, n = options.batch_size, options.block_size, options.eval_iters
    splits = {split: Batches(dataset, split, B, T, seed=options.seed + 1) for split in SPLITS}
    compiled = compile_loss(model, options)

    def evaluate(model: GPT, stop_asked: Callable[[], int]) -> dict[str, float] | None:
        means = {}
        for split, batches in splits.items():
            drawn = batches.every_window() if n == -1 else (batches(i) for i in range(n))
            losses, targets = [], []
            for x, y in drawn:
                if stop_asked():
                    return None
                losses.append(compiled(model, distribute(x), distribute(y)))
                targets.append((y >= 0).sum())
                if len(losses) > 1:  # wait for the batch before, so that a stop comes soon
                    losses[-2].block_until_ready()
            total = sum(float(loss) * count for loss, count in zip(losses, targets, strict=True))
            means[split] = float(total / sum(targets))
        return means

    return evaluate


def compile_loss(model: GPT, options: Options) -> Callable[..., Float[Array, ""]]:
    """Compile the mean loss without dropout, as a function `loss(model, x, y)` with x, y (B, T)."""
    pipeline = make_pipeline(options)
    loss = partial(pipeline.mean_loss, chunked_cross_entropy) if pipeline else mean_loss
    batch = example_batch(options.batch_size, options.block_size)
    return eqx.filter_jit(loss).lower(model, batch, batch).compile()  # ty: ignore[missing-attribute]


def score(
    model: GPT, batches: Iterable[Batch], shape: tuple[int, int], n_targets: int, source: str | Path
) -> tuple[Float[np.ndarray, " R"], float]:
    """Return the sum of -log p over each row's targets, in nats, and the seconds that took once compiled.

    The batches have the `shape` (B, T); the progress bar counts to `n_targets`. Raises UserError, which names
    the `source`, for tokens that the model does not know.
    """
    B, T = shape
    batch = example_batch(B, T)
    compiled = score_rows.lower(model, batch, batch).compile()  # ty: ignore[missing-attribute]
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


@eqx.filter_jit
def score_rows(model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"]) -> Float[Array, " B"]:
    """Return the sum of -log p over each row's targets, replicated, so that every process has all of it."""
    nats = nats_of_rows(model.features(x), model.head, y, model.config.compute)
    return eqx.filter_shard(nats, PartitionSpec())
