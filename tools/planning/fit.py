"""Compile a training step for absent devices, see whether it fits them, and find what makes it fit."""

import math
import operator
import re
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import jax
from jax.interpreters.partial_eval import dce_jaxpr

from common.errors import UserError
from config.options import Options
from data.dataset import Meta
from model import GPTConfig
from parallel.mesh import batch_shape, mesh_of, parse
from runs.start import choose_config
from tools.planning.program import Message, Program, product_flops
from tools.planning.target import Target, usable
from training.compute import How, choose_how
from training.state import TrainState, state_shapes
from training.step import compile_step, train_step

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
    flops: float  # of the step's products, on all devices together
    sent: list[Message]  # unknown where the compiler ran out of memory


def plan(options: Options, target: Target, meta: Meta) -> Planned:
    """Compile the step of `options` for the target's devices. Raises UserError for options that cannot be."""
    sizes = parse(options.mesh, target.count)
    n, count = math.prod(sizes.values()), target.count
    if n != count:
        raise UserError(f"mesh={options.mesh} has {n} devices, and --on={target.text} {count}: use all")
    with jax.set_mesh(mesh_of(target.devices, tuple(sizes.values()))):
        config = choose_config(options, meta)
        how, shapes = choose_how(options, config), state_shapes(config, options)
        try:
            compiled = compile_step(shapes, options)
            needed = memory_of(compiled)
            text = compiled.as_text() or ""
        except jax.errors.JaxRuntimeError as error:
            if (peak := needed_bytes(str(error))) is None:
                raise UserError(f"--on={target.text}: XLA cannot compile this step: {error}") from error
            needed, text = dict(peak=peak), ""
        flops = traced_flops(shapes, options)
    state = bytes_held(shapes.model), bytes_held(shapes.opt_state)
    memory = Memory(*state, available=usable(target.device), **needed)
    sent = Program(text, sizes).messages() if text else []
    return Planned(options, target, config, memory, how, flops, sent)


def traced_flops(state: TrainState, options: Options) -> float:
    """Return the FLOPs of a step's products. Attention counts as plain ones: a kernel hides its own."""
    batch = batch_shape(options.gradient_accumulation_steps, options.batch_size, options.block_size)
    how = choose_how(replace(options, attention="einsum"), state.model.config)
    jaxpr = jax.make_jaxpr(partial(train_step, options=options, how=how))(state, batch, batch).jaxpr
    used, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))  # without the gradients of frozen weights
    return product_flops(used)


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


def changes_that_save(options: Options, devices: int) -> list[dict[str, Any]]:
    """Return options for the same tokens in ever less memory: weights split, smaller microbatches, remat."""
    A, B, sizes = options.gradient_accumulation_steps, options.batch_size, parse(options.mesh, devices)
    rows = sizes["data"] * sizes["fsdp"]
    changes: list[dict[str, Any]] = []
    divides = B % devices == options.n_embd % devices == 0  # as `check_fit` asks
    if sizes["stage"] == 1 and sizes["fsdp"] < devices and divides:
        changes.append(dict(mesh=f"fsdp:{devices}"))
        rows = devices
    for parts in (2, 4, 8, 16, 32):
        if B % (parts * rows) == 0:
            changes.append(dict(batch_size=B // parts, gradient_accumulation_steps=A * parts))
    if options.remat != "block":
        changes.append(dict(remat="block"))
    return list(accumulate(changes, operator.or_))
