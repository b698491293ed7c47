"""The loss of a model on each split of a data set, as training estimates it."""

from collections.abc import Callable
from functools import partial

import jax
from jaxtyping import Array, Float

from config.options import Options
from data.batches import Batches
from data.dataset import SPLITS, Dataset
from model import GPT
from parallel.pipeline.loop import make_schedule, pipeline_loss
from parallel.sharding import batch_shape, distribute
from training.chunked_loss import chunked_cross_entropy
from training.step import mean_loss

Evaluate = Callable[[GPT, Callable[[], int]], dict[str, float] | None]


def make_evaluate(options: Options, dataset: Dataset, model: GPT) -> Evaluate:
    """Return a function from a model to its mean loss on each split, in nats per token.

    It averages over `eval_iters` random batches, always the same ones; -1: over the whole split. Before each
    batch it calls its second argument (runs/process.py), and returns None if that asks it to stop.
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
    schedule = make_schedule(options)
    loss = partial(pipeline_loss, schedule, chunked_cross_entropy) if schedule else mean_loss
    batch = batch_shape(options.batch_size, options.block_size)
    return jax.jit(loss).lower(model, batch, batch).compile()
