"""The variants that bench.py measures by turns: the step, train.py's loop, PyTorch's step.

A variant has a `name` and a `dtype`, and `run(n)` returns seconds per step over n steps.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from tempfile import TemporaryDirectory

import jax
import numpy as np

from common.errors import UserError
from config.options import Options
from data.dataset import Dataset
from model import GPTConfig
from parallel.machines import reuse_freed_memory
from runs.checkpoint import Checkpoints, Manifest
from runs.loop import Loop, NextToken
from runs.metrics import Metrics
from runs.start import Run
from training.compute import choose_how
from training.state import create_state, model_config
from training.step import compile_step

BUDGET, BLOCK, MIN_ROUNDS = 10.0, 0.5, 3  # seconds per variant, seconds per turn, turns


class JaxStep:
    """The training step of train.py."""

    def __init__(self, config: GPTConfig, options: Options, name: str | None = None):
        self.config, self.options = config, options
        self.dtype = choose_how(options, config).dtype
        self.name = name or f"JAX {self.dtype}"
        self.state = create_state(config, options)
        start = time.perf_counter()
        self.train_step = compile_step(self.state, options)
        self.compile_seconds = time.perf_counter() - start
        reuse_freed_memory(self.train_step)
        shape = (4, 2, options.gradient_accumulation_steps, options.batch_size, options.block_size)
        self.batches = np.random.default_rng(0).integers(config.vocab_size, size=shape, dtype=np.int32)
        self.tokens = self.batches[0, 0].size  # of a step

    def run(self, n: int) -> float:
        start = time.perf_counter()
        for i in range(n):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):  # XProf tells steps apart by it
                self.state, _ = self.train_step(self.state, *self.batches[i % 4])
        jax.block_until_ready(self.state)
        return (time.perf_counter() - start) / n

    def losses(self, n: int) -> list[float]:
        """Learn one batch for n steps, and return the loss before each."""
        found = []
        for _ in range(n):
            self.state, metrics = self.train_step(self.state, *self.batches[0])
            found.append(float(metrics["loss"]))
        return found


class TrainLoop:
    """The step as train.py's loop runs it."""

    name = "in train.py's loop"

    def __init__(self, step: JaxStep, stack: ExitStack):
        self.step, self.dtype = step, step.dtype
        options = replace(step.options, out_dir=stack.enter_context(TemporaryDirectory()), wandb_log=False)
        metrics = Metrics(options, 0, step.config, jax.sharding.get_mesh().size)
        stack.callback(metrics.close)
        dataset = Dataset(options.dataset, options.vocab_size)
        never = replace(options, eval_interval=sys.maxsize, max_iters=sys.maxsize)
        run = Run(never, Checkpoints(options.out_dir), False, dataset, step.config, step.state)
        manifest = Manifest(options, step.config.vocab_size, None)
        objective = NextToken(run, step.train_step, evaluate=lambda *_: None)
        self.loop = Loop(run, objective, metrics, step.state, manifest, loss=0.0, best=0.0)

    def run(self, n: int) -> float:
        start = time.perf_counter()
        self.loop.state = self.step.state
        self.loop.go(int(self.step.state.step) + n, stop_asked=lambda: 0)
        self.step.state = jax.block_until_ready(self.loop.state)
        return (time.perf_counter() - start) / n


class TorchVariant:
    """A variant of torch_step.py, in a process of its own that waits while it is not its turn."""

    def __init__(self, step: JaxStep, dtype: str, compiled: bool, stack: ExitStack):
        self.name, self.dtype = f"PyTorch {'compiled' if compiled else 'eager'} {dtype}", dtype
        device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        self.variant = step.config, step.options, dtype, compiled, device
        self.pool = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))

    def run(self, n: int) -> float:
        """Raises UserError where this machine cannot run it."""
        try:
            return self.pool.submit(time_torch, n, *self.variant).result()
        except BrokenProcessPool:
            raise UserError("its process was killed, perhaps for want of memory") from None


def time_torch(n: int, *variant) -> float:
    from tools.benchmarks.torch_step import seconds_per_step  # here: no other process needs PyTorch

    return seconds_per_step(n, *variant)


def rivals(step: JaxStep, stack: ExitStack) -> list:
    """Make the JAX step in the other dtype, and those of PyTorch's four variants that run here."""
    if jax.default_backend() == "tpu":
        raise UserError("--vs=torch compares on a CPU or an NVIDIA GPU, and this is a TPU; give --device=cpu")
    other = "bfloat16" if step.dtype == "float32" else "float32"
    options = replace(step.options, dtype=other)
    variants: list = [JaxStep(model_config(options, step.config.vocab_size), options)]
    for dtype in ("float32", "bfloat16"):
        for compiled in (False, True):
            variant = TorchVariant(step, dtype, compiled, stack)
            try:
                variant.run(1)
                variants.append(variant)
            except UserError as error:
                print(f"{variant.name} is unavailable: {error}")
                variant.pool.shutdown()  # a process that is ending takes time from the others
    return variants


def take_turns(variants: list, steps: int | None) -> dict[str, list[float]]:
    """Measure seconds per step of every block of steps, by variant. The first run of each is not counted."""
    for variant in variants:
        variant.run(1)
    pilot = {variant.name: variant.run(1) for variant in variants}
    rounds = max(MIN_ROUNDS, int(BUDGET / max(BLOCK, *pilot.values())))
    if steps is None:
        block = {name: max(1, int(BLOCK / seconds)) for name, seconds in pilot.items()}
    else:
        rounds = min(rounds, steps)
        block = dict.fromkeys(pilot, -(-steps // rounds))
    times = {name: [] for name in pilot}
    for _ in range(rounds):
        for variant in variants:
            variant.run(1)  # untimed, because what the variants before it left in caches and memory is theirs
            times[variant.name].append(variant.run(block[variant.name]))
    return times
