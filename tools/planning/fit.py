"""Compile a training step for absent devices, see whether it fits them, and find what makes it fit."""

import math
import operator
import re
import time
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

from common.errors import UserError
from config.options import Options
from data.dataset import Meta
from model import GPTConfig
from parallel.mesh import mesh_of, parse
from runs.metrics import count_parameters
from runs.start import choose_config
from tools.planning.cost import Cost, estimate
from tools.planning.program import parse_program
from tools.planning.speeds import Work, usable
from tools.planning.target import Target
from training import reduce
from training.compute import How, choose_how
from training.state import model_config, state_shapes
from training.step import compile_step

GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """Bytes that a device needs for the step, as XLA plans it."""

    weights: int
    optimizer: int
    peak: int  # all
    available: int
    temporaries: int | None = None  # None where the compiler ran out of memory

    @property
    def fits(self) -> bool:
        return self.temporaries is not None and self.peak <= self.available


@dataclass(frozen=True)
class Planned:
    options: Options
    target: Target
    config: GPTConfig
    memory: Memory
    how: How
    seconds: float  # that compiling took
    cost: Cost | None = None  # None for lack of memory


def plan(options: Options, target: Target, meta: Meta) -> Planned:
    """Compile the step of `options` for the target's devices. Raises UserError for options that cannot be."""
    sizes = parse(options.mesh, target.count)
    n, count = math.prod(sizes.values()), target.count
    if n != count:
        raise UserError(f"mesh={options.mesh} has {n} devices, and --on={target.text} {count}: use all")
    with jax.set_mesh(mesh_of(target.devices, tuple(sizes.values()))):
        config = choose_config(options, meta)
        how, shapes = choose_how(options, config), state_shapes(config, options)
        start = time.perf_counter()
        try:
            compiled = compile_step(shapes, options)
            needed = memory_of(compiled)
            text = compiled.as_text()
        except jax.errors.JaxRuntimeError as error:
            if (peak := needed_bytes(str(error))) is None:
                raise UserError(f"--on={target.text}: XLA cannot compile this step: {error}") from error
            needed, text = dict(peak=peak), None
        seconds = time.perf_counter() - start
    state = bytes_held(shapes.model), bytes_held(shapes.opt_state)
    memory = Memory(*state, available=usable(target.device), **needed)
    cost = estimate(parse_program(text), target, sizes) if text else None
    return Planned(options, target, config, memory, how, seconds, cost)


def memory_of(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Return all bytes that a compiled program needs of a device, and those of its temporaries."""
    sizes = compiled.memory_analysis()
    assert sizes is not None, "XLA plans the memory for GPUs and TPUs"
    kept = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    temporaries = sizes.temp_size_in_bytes
    return dict(peak=kept + temporaries + sizes.generated_code_size_in_bytes, temporaries=temporaries)


def bytes_held(shapes: Any) -> int:
    """Return the bytes of a device's part of a tree of shapes."""
    leaves = jax.tree.leaves(shapes)
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)


def needed_bytes(message: str) -> int | None:
    """Return the bytes that a compiler says it would need; None for another error than a lack of memory."""
    patterns = r"Used ([\d.]+)([KMGTPE]?)i?B? of", r"\(([\d.]+)([KMGTPE]?)\) exceeds", r"([\d.]+)([KMGT])iB"
    if "RESOURCE_EXHAUSTED" in message or "Ran out of memory" in message:
        for pattern in patterns:
            if found := re.search(pattern, message):
                return int(float(found[1]) * 1024 ** " KMGTPE".index(found[2] or " "))
    return None


def count_by_depth(options: Options, target: Target, meta: Meta) -> tuple[Work, float]:
    """Return a deep step's work and peak bytes, from two shallow ones: each layer adds the same.

    Raises UserError where these need too much memory already.
    """
    shallow = max(2, parse(options.mesh, target.count)["stage"])
    share = (options.n_layer - shallow) / shallow  # 1 is as deep as the deeper one
    deep = options.n_layer > max(12, 2 * shallow)  # a dozen layers compile as soon as those two
    weights = {shallow: 1 - share, 2 * shallow: share} if deep else {options.n_layer: 1.0}
    config = model_config(replace(options, document_mask=False), options.vocab_size or meta.vocab_size)
    works, peak = [], 0.0
    for depth, weight in weights.items():
        # Whether weights are gathered once a step depends on the size of the model: of the deep one.
        part = count_parameters(replace(config, n_layer=depth)) / count_parameters(config)
        with patch.object(reduce, "GATHERED_FRACTION", part * reduce.GATHERED_FRACTION):
            planned = plan(replace(options, n_layer=depth), target, meta)
        if planned.cost is None:
            raise UserError(f"--on={target.text}: XLA has too little memory for this step")
        works.append(planned.cost.works._replace(times=weight * planned.cost.works.times))
        peak += weight * planned.memory.peak
    return Work(*map(np.concatenate, zip(*works, strict=True))), peak


def changes_that_save(options: Options, devices: int) -> list[dict[str, Any]]:
    """Return options for the same tokens in ever less memory: weights split, smaller microbatches, remat."""
    A, B, sizes = options.gradient_accumulation_steps, options.batch_size, parse(options.mesh, devices)
    rows = sizes["data"] * sizes["fsdp"]
    changes: list[dict[str, Any]] = []
    if sizes["stage"] == 1 and sizes["fsdp"] < devices and B % devices == 0:
        changes.append(dict(mesh=f"fsdp:{devices}"))
        rows = devices
    for parts in (2, 4, 8, 16, 32):
        if B % (parts * rows) == 0:
            changes.append(dict(batch_size=B // parts, gradient_accumulation_steps=A * parts))
    if options.remat == "none":
        changes.append(dict(remat="block"))
    return list(accumulate(changes, operator.or_))
