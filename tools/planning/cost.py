"""Price a compiled program: the seconds that a device's peaks allow at best, by class of work and by line.

    cost = estimate(program, target, mesh_shape)
    cost.seconds, cost.by_class(), cost.by_line()

These are lower bounds: docs/planning.md has the rules, and what they leave out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from model import GPTConfig
from tools.planning.operations import KINDS, Operation, operations, unknown_loops
from tools.planning.program import Program
from tools.planning.speeds import Speeds, Work, gather, hidden_seconds, step_seconds
from tools.planning.target import GPUS_PER_HOST, Target

ROOT = f"{Path(__file__).resolve().parents[2]}/"
# These say how something is computed. The lines that call them say what.
GENERAL = {"layers/products.py", "Linear.__call__", "compile_step"}


class Price(NamedTuple):
    """An operation with what it asks of the device, and the time of all its runs in a step."""

    operation: Operation
    name: str  # its class of work
    work: Work
    bound: str  # by products, memory, network or start
    seconds: float


@dataclass(frozen=True)
class Row:
    """The sum of some operations in one step."""

    name: str
    seconds: float
    flops: float
    bytes: float
    sent: float
    kernels: int
    bound: str  # of the operation that takes longest


@dataclass(frozen=True)
class Cost:
    prices: list[Price]
    speeds: Speeds
    unknown_loops: int  # whose trip count is not known; their bodies count once

    @cached_property
    def works(self) -> Work:
        return gather([x.work for x in self.prices])

    @property
    def seconds(self) -> float:
        """The seconds of a step that does one thing after another."""
        return float(step_seconds(self.works, replace(self.speeds, hidden=0.0))[0])

    @property
    def hidden_seconds(self) -> float:
        """The seconds of a step that hides messages, and a TPU's copies to the chip, as far as it can."""
        return float(hidden_seconds(self.works, self.speeds)[0])

    def by_class(self) -> list[Row]:
        """Return the classes of work in the order of KINDS, then communication by mesh axes."""
        rows = self.rows(lambda x: x.name)
        return sorted(rows, key=lambda row: ([*KINDS, row.name].index(row.name), row.name))

    def by_line(self) -> list[Row]:
        """Return the lines of this project, forward and backward apart, the costliest first."""
        return sorted(self.rows(lambda x: line_of(x.operation)), key=lambda row: -row.seconds)

    def rows(self, name: Callable[[Price], str]) -> list[Row]:
        groups: dict[str, list[Price]] = {}
        for x in self.prices:
            groups.setdefault(name(x), []).append(x)
        return [
            Row(
                name,
                seconds=sum(x.seconds for x in group),
                flops=sum(x.operation.flops * x.operation.times for x in group),
                bytes=sum(x.operation.bytes * x.operation.times for x in group),
                sent=sum(x.work.sent * x.work.times for x in group),
                kernels=sum(x.operation.times for x in group),
                bound=max(group, key=lambda x: x.seconds).bound,
            )
            for name, group in groups.items()
        ]

    def sent_along(self, axes: str) -> float:
        """Return the bytes that a device sends along these mesh axes together."""
        return sum(x.work.sent * x.work.times for x in self.prices if x.name == f"network: {axes}")


def estimate(program: Program, target: Target, mesh_shape: dict[str, int]) -> Cost:
    """Price a program for the devices of a mesh, whose axes' sizes are given in order."""
    prices = [price(x, target, mesh_shape) for x in operations(program)]
    return Cost(prices, target.speeds, unknown_loops(program))


def price(x: Operation, target: Target, mesh_shape: dict[str, int]) -> Price:
    axes = mesh_axes(x, mesh_shape) if x.collective else ""
    work = message(x, target, axes) if x.collective else compute(x)
    name = f"network: {axes}" if x.collective else x.kind
    seconds = target.speeds.seconds(work)
    start = seconds.pop("start")
    bound = max(seconds, key=lambda name: seconds[name])
    longest = seconds[bound]
    return Price(x, name, work, "start" if longest < start else bound, x.times * (longest + start))


def compute(x: Operation) -> Work:
    under = x.runs_under_others
    return Work(x.times, x.flops, x.dtype == "f32", x.bytes, x.exponentials, under_others=under)


def message(x: Operation, target: Target, axes: str) -> Work:
    groups = x.groups or (range(target.count),)  # none: all devices together
    n = max(map(len, groups))
    hosts = max(len({i // GPUS_PER_HOST for i in group}) for group in groups)
    # Each GPU sends its share to another machine through its own network card.
    between = bytes_sent(x, n, hosts) if hosts > 1 and target.device.between_hosts else 0.0
    sent, hidden = bytes_sent(x, n, n), axes != "tensor"  # the next product waits for a sum over `tensor`
    return Work(x.times, sent=sent, between_hosts=between, collective=True, under_others=hidden)


def bytes_sent(x: Operation, n: int, places: int) -> float:
    """Return the bytes that each of n devices sends for a collective, around a ring of so many places."""
    if x.collective in ("collective-permute", "collective-broadcast"):
        return float(x.message)
    return (2 if x.collective == "all-reduce" else 1) * (places - 1) / n * x.message


def mesh_axes(x: Operation, mesh_shape: dict[str, int]) -> str:
    """Name the axes of the mesh along which a collective's devices differ."""
    differ: set[str] = set()
    for group in x.groups:
        places = np.array(np.unravel_index(group, tuple(mesh_shape.values())))
        differ |= {name for name, place in zip(mesh_shape, places, strict=True) if len(set(place)) > 1}
    return ",".join(name for name in mesh_shape if name in differ) or "all"


def line_of(x: Operation) -> str:
    """Name the innermost line of this project that says what is computed, or else the kernel."""
    what = f"({x.collective or x.kind})"
    ours = [line._replace(file=line.file.removeprefix(ROOT)) for line in x.source if ROOT in line.file]
    if not ours:
        return f"{x.instruction.name.rstrip('.0123456789')} {what}"
    line = next((line for line in ours if not GENERAL & {line.file, line.function}), ours[0])
    function = line.function.replace(".<locals>", "").removesuffix(".__call__")
    backward = ", backward" if "transpose(jvp" in x.instruction.op_name else ""
    return f"{line.file}:{line.line} {function}{backward} {what}"


def least_sent(
    config: GPTConfig, mesh_shape: dict[str, int], microbatches: int, parameters: int
) -> dict[str, float]:
    """Return the least bytes that a device must send in a step for its share of the weights, by mesh axis.

    For `fsdp` (ZeRO-3, arXiv:1910.02054), weights are gathered twice for each microbatch, in the products'
    dtype, and gradients are summed and scattered once, in float32; `reduce_once` in training/recipe.py sends
    less. For `data`, the gradients that a device keeps are summed once.
    """
    data, fsdp = mesh_shape["data"], mesh_shape["fsdp"]
    weights = parameters / mesh_shape["stage"] / mesh_shape["tensor"]  # that a device computes with
    gathered = 2 * microbatches * jnp.dtype(config.compute.dtype).itemsize
    sent = {
        "fsdp": (fsdp - 1) / fsdp * weights * (gathered + 4),
        "data": 2 * (data - 1) / data * weights / fsdp * 4,
    }
    return {axis: size for axis, size in sent.items() if size}
