"""The loop of every run that trains: evaluate, save, stop when asked, go on where an earlier run stopped.

What differs between runs is their objective: train.py's is the next token, rl.py's a reward.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, Protocol

import jax

from runs.checkpoint import Manifest, Score, as_loss
from runs.metrics import Metrics
from runs.start import Run
from training.evaluation import Evaluate
from training.state import TrainState
from training.step import StepBatches

StopAsked = Callable[[], int]  # runs/process.py: a status to end with, or 0
Means = dict[str, float]  # of an evaluation, as metrics.jsonl names them


class Objective(Protocol):
    """Says what a run learns, and from what. Subclasses have `batch`, `step` and `evaluate`."""

    score: Score
    unused: frozenset[str] = frozenset()  # the options of train.py that it has no use for

    def batch(self, i: int, state: TrainState) -> Any:
        """Return the batch of iteration `i`."""

    def tokens(self, batch: Any) -> int:
        """Return how many tokens of a batch are computed."""

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        """Consume a state, and return the next one with a report: `loss`, `grad_norm`, and more."""

    def evaluate(self, i: int, state: TrainState, stop_asked: StopAsked) -> Means | None:
        """Return the means of an evaluation, the score among them; None: asked to stop."""


class NextToken(Objective):
    """Predict the next token of a data set."""

    score = "loss"

    def __init__(self, run: Run, step: Callable, evaluate: Evaluate):
        self.batches = StepBatches(run.options, run.dataset)
        self.compiled_step, self.mean_losses = step, evaluate

    def batch(self, i, state):
        return self.batches(i)  # x and y (A, B, T): y is one token later

    def tokens(self, batch):
        return batch[0].size

    def step(self, state, batch):
        return self.compiled_step(state, *batch)

    def evaluate(self, i, state, stop_asked):
        losses = self.mean_losses(state.model, stop_asked)
        return losses and {f"{split}/loss": loss for split, loss in losses.items()}


def describe(means: Means) -> str:
    return ", ".join(f"{name.replace('/', ' ')} {mean:.4f}" for name, mean in means.items())


@dataclass
class Loop:
    """A run under way."""

    run: Run
    objective: Objective
    metrics: Metrics
    state: TrainState
    manifest: Manifest
    loss: float | None  # the score of the state's model, as checkpoints keep it; None: not evaluated yet
    best: float  # the least loss known so far
    first: Means | None = None  # of the first evaluation, if it was made before
    overwrites: bool = False  # an earlier run's checkpoints are there

    def go(self, end: int, stop_asked: StopAsked) -> int:
        """Train to iteration `end` and return 0, or until asked to stop and return that status."""
        options, i, status = self.run.options, int(self.state.step), 0
        while True:
            due = i % options.eval_interval == 0 or i == options.max_iters
            if due and self.loss is None and not self.evaluate(i, stop_asked):
                status = stop_asked()  # the resumed run begins with this evaluation
                break
            if i >= end or (status := stop_asked()):
                break
            with jax.profiler.StepTraceAnnotation("train", step_num=i):  # XProf tells steps apart by it
                self.step(i)
            i, self.loss = i + 1, None
        self.metrics.catch_up()
        return status

    def step(self, i: int) -> None:
        with self.metrics.making_batch():
            batch = self.objective.batch(i, self.state)
        self.state, report = self.objective.step(self.state, batch)
        if self.overwrites:
            jax.block_until_ready(report)  # an error in the first step should not cost the run that is there
            self.delete_overwritten()
        self.metrics.step(i, report, self.objective.tokens(batch))  # reads step i - 1's report meanwhile

    def evaluate(self, i: int, stop_asked: StopAsked) -> bool:
        """Evaluate the model, and save it if it should be. Return False if asked to stop before the end."""
        self.metrics.catch_up()  # reads the last step's report
        means, self.first = self.first or self.objective.evaluate(i, self.state, stop_asked), None
        if means is None:
            return False
        self.metrics.evaluation(i, means, describe(means))
        options, score = self.run.options, self.objective.score
        self.loss = as_loss(score, means[f"val/{score}"])
        improved, self.best = self.loss < self.best, min(self.loss, self.best)
        if i == 0:  # the seed makes this model again, so that its loss alone is kept
            self.manifest = replace(self.manifest, to_beat=self.loss)
        if (i > 0 or i == options.max_iters) and (improved or options.always_save_checkpoint):
            self.save()
        return True

    def save(self) -> None:
        self.delete_overwritten()
        self.run.checkpoints.save(self.state, self.manifest, self.loss)  # copies what a step donates

    def delete_overwritten(self) -> None:
        if self.overwrites:
            self.run.checkpoints.delete_all()
            self.overwrites = False


def run_loop(
    run: Run, state: TrainState, manifest: Manifest, objective: Objective, stop_asked: StopAsked
) -> int:
    """Train from `state` to `max_iters` and return 0, or until asked to stop and return that status."""
    options, checkpoints = run.options, run.checkpoints
    i = int(state.step)
    loss = checkpoints.loss(i) if run.resuming else None
    if i == 0:  # saved at a stop, and perhaps evaluated since
        manifest = replace(manifest, to_beat=loss)
    evaluated, first = loss is not None, None
    if options.overwrite:  # an error should not cost the run that is there
        first = objective.evaluate(i, state, stop_asked)
        if status := stop_asked():
            return status
    with closing(Metrics(options, i, run.config, jax.sharding.get_mesh().size, evaluated)) as metrics:
        kept = [] if options.overwrite else checkpoints.iterations()
        losses = [manifest.to_beat, *map(checkpoints.loss, kept)]
        best = min((x for x in losses if x is not None), default=math.inf)
        loop = Loop(run, objective, metrics, state, manifest, loss, best, first, options.overwrite)
        status = loop.go(options.max_iters, stop_asked)
        if status:
            loop.save()
            stopped = f"stopped at iter {int(loop.state.step)}; resume with"
            print(f"{stopped} --out_dir={quote(options.out_dir)} --init_from=resume")
        checkpoints.wait()
    return status
