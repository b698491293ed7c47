"""The loop of every run that trains: evaluate, save, stop when asked, go on where an earlier run stopped.

What differs between runs is their objective: train.py's is the next token, rl.py's a reward.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import jax

from common.files import written
from config.options import Options
from runs.checkpoint import Checkpoints, Manifest, Score, as_loss
from runs.metrics import Metrics
from runs.start import Run
from training.evaluation import Evaluate
from training.state import TrainState
from training.step import StepBatches

StopAsked = Callable[[], int]  # runs/process.py: a status to end with, or 0
SUFFIXES = (".json", ".jsonl", ".png", ".txt")  # of what a run writes beside its checkpoints
Means = dict[str, float]  # of an evaluation, as metrics.jsonl names them


class Objective(Protocol):
    """Says what a run learns, and from what. Subclasses have `batch`, `step` and `evaluate`."""

    score: Score

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


class Earlier:
    """A run that --overwrite=True replaces. It stays as it is if no step of the new one can be done."""

    def __init__(self, options: Options, checkpoints: Checkpoints):
        self.stays, self.checkpoints = options.overwrite, checkpoints
        files = Path(options.out_dir).iterdir() if self.stays and jax.process_index() == 0 else ()
        self.contents = {path: path.read_bytes() for path in files if path.suffix in SUFFIXES}

    def delete(self) -> None:
        if self.stays:
            self.checkpoints.delete_all()
            self.stays = False

    def restore(self) -> None:
        """Put its files back, if it stays."""
        for path, content in self.contents.items() if self.stays else ():
            with written(path) as file:
                file.write(content)


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
    earlier: Earlier | None = None

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
        if self.earlier and self.earlier.stays:
            jax.block_until_ready(report)
            self.earlier.delete()
        self.metrics.step(i, report, self.objective.tokens(batch))  # reads step i - 1's report meanwhile

    def evaluate(self, i: int, stop_asked: StopAsked) -> bool:
        """Evaluate the model, and save it if it should be. Return False if asked to stop before the end."""
        self.metrics.catch_up()  # reads the last step's report
        if (means := self.objective.evaluate(i, self.state, stop_asked)) is None:
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
        if self.earlier:
            self.earlier.delete()
        self.run.checkpoints.save(self.state, self.manifest, self.loss)  # copies what a step donates


def run_loop(
    run: Run, state: TrainState, manifest: Manifest, objective: Objective, stop_asked: StopAsked
) -> int:
    """Train from `state` to `max_iters` and return 0, or until asked to stop and return that status."""
    options, checkpoints = run.options, run.checkpoints
    kept = [] if options.overwrite else checkpoints.of_text(manifest.sha256)
    i = int(state.step)
    loss = checkpoints.loss(i) if i in kept else None
    if i == 0:  # saved at a stop, and perhaps evaluated since
        manifest = replace(manifest, to_beat=loss)
    losses = [manifest.to_beat, *map(checkpoints.loss, kept)]
    best = min((x for x in losses if x is not None), default=math.inf)
    devices, earlier = jax.sharding.get_mesh().size, Earlier(options, checkpoints)
    try:
        with closing(Metrics(options, i, run.config, devices, loss is not None)) as metrics:
            loop = Loop(run, objective, metrics, state, manifest, loss, best, earlier)
            status = loop.go(options.max_iters, stop_asked)
            if status and not earlier.stays:
                loop.save()
                stopped = f"stopped at iter {int(loop.state.step)}; resume with"
                print(f"{stopped} --out_dir={quote(options.out_dir)} --init_from=resume")
            checkpoints.wait()
    finally:
        earlier.restore()
    return status
