"""Compile a training step for absent devices, see whether it fits them, and if not, find what makes it fit.

    planned = plan(options, target, meta)             compiles the step: half a minute to some minutes
    planned.memory.fits
    for other in remedies(planned, target, meta): ... what may fit, planned in turn
    largest(planned, target, meta)                    the same with the largest microbatch that fits

The step is the very `train_step` of a run, compiled for the state's shapes on a mesh of devices that are not
there. A compiler that runs out of the device's memory says how much it would have needed, which is an answer
too.
"""

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax

from config.command_line import UserError
from config.options import Options
from data.dataset import Meta
from data.tokenizer import end_of_text
from model import GPTConfig
from parallel.mesh import check_fit, mesh_of, parse
from parallel.pipeline.loop import make_pipeline
from runs.sizes import check_training
from tools.planning.cost import Cost, estimate
from tools.planning.program import parse_program
from tools.planning.target import Target, absent_devices
from training.recipe import compile_step
from training.state import TrainState, model_config, state_shapes

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}


@dataclass(frozen=True)
class Memory:
    """Bytes that a device needs for the step, as XLA plans it."""

    weights: int
    optimizer: int
    peak: int  # all: the state, the batch, temporaries and a TPU's code
    available: int
    temporaries: int | None = None  # None where the compiler ran out of memory

    @property
    def fits(self) -> bool:
        return self.temporaries is not None and self.peak <= self.available

    @property
    def rest(self) -> int:
        """The batch, the code, and what tiles fill up."""
        return self.peak - self.weights - self.optimizer - (self.temporaries or 0)


@dataclass(frozen=True)
class Planned:
    """A step that was compiled, or for which the compiler had too little memory."""

    options: Options
    config: GPTConfig
    mesh_shape: dict[str, int]
    memory: Memory
    seconds: float  # that compiling took
    text: str | None  # the optimised program; None if it does not compile for lack of memory
    cost: Cost | None  # None with it


def plan(options: Options, target: Target, meta: Meta) -> Planned:
    """Compile the step of `options` for the target's devices. Raises UserError for options that cannot be."""
    sizes = parse(options.mesh, target.count)
    if (n := math.prod(sizes.values())) != target.count:
        raise UserError(
            f"mesh={options.mesh} has {n} devices, and --on={target.text} {target.count}: use all"
        )
    with jax.set_mesh(mesh_of(absent_devices(target.text), tuple(sizes.values()))):
        config = model_config(options, meta.vocab_size, end_of_text(meta.tokenizer))
        check_training(config, options, planned=True)
        check_fit(jax.sharding.get_mesh(), config, options.batch_size, options.gradient_accumulation_steps)
        make_pipeline(options)  # raises UserError for one that cannot be
        shapes = state_shapes(config, options)
        start = time.perf_counter()
        try:
            compiled = compile_step(shapes, options)
        except jax.errors.JaxRuntimeError as error:
            needed = needed_bytes(str(error))
            if needed is None:
                raise UserError(
                    f"--on={target.text}: XLA cannot compile this step, with "
                    f"attention={config.compute.attention}, mesh={options.mesh}: {str(error)[:500]}"
                ) from error
            memory = Memory(*state_bytes(shapes), peak=needed, available=target.device.usable)
            return Planned(options, config, sizes, memory, time.perf_counter() - start, None, None)
        seconds = time.perf_counter() - start
    text = compiled.as_text() or ""
    cost = estimate(parse_program(text), target, sizes)
    return Planned(options, config, sizes, memory_of(compiled, shapes, target), seconds, text, cost)


def memory_of(compiled: jax.stages.Compiled, shapes: TrainState, target: Target) -> Memory:
    plan = compiled.memory_analysis()
    assert plan is not None, "XLA plans the memory for GPUs and TPUs"
    peak = (
        plan.argument_size_in_bytes
        + plan.output_size_in_bytes
        - plan.alias_size_in_bytes
        + plan.temp_size_in_bytes
        + plan.generated_code_size_in_bytes
    )
    available = target.device.usable
    return Memory(*state_bytes(shapes), peak=peak, available=available, temporaries=plan.temp_size_in_bytes)


def state_bytes(shapes: TrainState) -> tuple[int, int]:
    """Return the bytes of a device's part of the weights, and of the optimizer's state."""

    def held(x: jax.ShapeDtypeStruct) -> int:
        shape = x.sharding.shard_shape(x.shape) if x.sharding else x.shape
        return math.prod(shape) * x.dtype.itemsize

    weights, optimizer = (
        sum(held(x) for x in jax.tree.leaves(tree)) for tree in (shapes.model, shapes.opt_state)
    )
    return weights, optimizer


def needed_bytes(message: str) -> int | None:
    """Return the bytes that a compiler says it would need; None for another error than a lack of memory."""
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        return None
    for pattern in (
        r"Used ([\d.]+)([KMGTPE]?)i?B? of",
        r"\(([\d.]+)([KMGTPE]?)\) exceeds",
        r"([\d.]+)([KMGT])iB",
    ):
        if found := re.search(pattern, message):
            return int(float(found[1]) * UNITS[found[2]])
    return None


# What would make it fit


def remedies(planned: Planned, target: Target, meta: Meta) -> Iterator[tuple[str, Planned]]:
    """Plan changes of the options that need less memory, and yield each with its name."""
    for changes in changes_that_save(planned, target):
        try:
            yield describe_changes(changes), plan(replace(planned.options, **changes), target, meta)
        except UserError:  # a mesh that the model cannot be split over
            continue


def changes_that_save(planned: Planned, target: Target) -> list[dict[str, Any]]:
    """Return options to change: weights split over all devices, and with that smaller microbatches and remat.

    The microbatches are as many as would fit if temporaries shrank with them.
    """
    options, memory = planned.options, planned.memory
    found: list[dict[str, Any]] = []
    split: dict[str, Any] = {}
    if planned.mesh_shape["stage"] == 1 and planned.mesh_shape["fsdp"] < target.count:
        split = dict(mesh=f"fsdp:{target.count}")
        found.append(split)
    rows = target.count if split else planned.mesh_shape["data"] * planned.mesh_shape["fsdp"]
    state = memory.weights + memory.optimizer
    room = memory.available - (state / target.count if split else state)
    parts = next((n for n in (2, 4, 8, 16, 32) if memory.peak - state <= 0.95 * n * room), None)
    smaller: dict[str, Any] = {}
    if parts and options.batch_size % (parts * rows) == 0:
        A, B = options.gradient_accumulation_steps * parts, options.batch_size // parts
        smaller = split | dict(batch_size=B, gradient_accumulation_steps=A)
        found.append(smaller)
    if options.remat == "none":
        found += [split | dict(remat="dots"), split | dict(remat="block")]
        if smaller:
            found.append(smaller | dict(remat="block"))
    return found


def describe_changes(changes: dict) -> str:
    return " ".join(f"--{name}={value}" for name, value in changes.items())


def largest(planned: Planned, target: Target, meta: Meta, say: Callable[[str], None]) -> Planned | None:
    """Return the plan with the largest microbatch that fits, to a sixteenth; None if not even one row does.

    Memory is nearly linear in the microbatch: two plans give a line, and the guess from it is tried, then
    others near it. `say` is told of each try.
    """
    rows = planned.mesh_shape["data"] * planned.mesh_shape["fsdp"]
    first = planned.options.batch_size // rows
    tried: dict[int, Planned] = {first: planned}

    def fits(n: int) -> bool:
        if n not in tried:
            say(f"trying --batch_size={n * rows}")
            tried[n] = plan(replace(planned.options, batch_size=n * rows), target, meta)
        return tried[n].memory.fits

    fits(second := max(1, first // 2) if first > 1 and not planned.memory.fits else 2 * first)
    slope = (tried[second].memory.peak - planned.memory.peak) / (second - first)
    n = max(1, int(first + (planned.memory.available - planned.memory.peak) / max(slope, 1.0)))
    while not fits(n):
        if n == 1:
            return None
        n -= max(1, n // 16)
    while (more := n + max(1, n // 16)) not in tried and fits(more):
        n = more
    return tried[n]
