"""Price a compiled program: the seconds that a device's peaks allow at best, by class of work and by line.

    cost = estimate(program, target, mesh_shape)
    cost.seconds, cost.by_class(), cost.by_line()

A kernel takes the longer of two times: its FLOPs at 80% of the dense bfloat16 peak, its bytes at 90% of the
memory's bandwidth. A GPU takes 1.5 microseconds more to start it; a TPU runs the step as one program. Float32
products run at half the peak on a GPU, as TF32, and at the full peak on a TPU, which rounds them to bfloat16.
A collective over n devices sends (n - 1) / n of the array at 80% of the link: an all-reduce twice that, a
permutation all of it. Between machines, each GPU sends its share through its own network card.

These are lower bounds. They leave out partly filled tiles, cache misses, the network's latency, and the loop
around the step. A pipeline's ticks count as those of its busiest rank.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tools.planning.program import Instruction, Line, Program
from tools.planning.target import GPUS_PER_HOST, Target
from tools.planning.work import Kernel, kernels, unknown_loops

PRODUCT, MEMORY, NETWORK = 0.8, 0.9, 0.8  # shares of the peaks that a good kernel reaches
START = 1.5e-6  # seconds that a GPU takes to start a kernel
CLASSES = ("matrix products", "attention", "loss", "norms and elementwise", "optimizer", "copies")
COPIES = ("copy", "copy-start", "slice-start", "transpose", "bitcast-convert")

ROOT = f"{Path(__file__).resolve().parents[2]}/"
# These say how something is computed. The lines that call them say what.
GENERAL = ("layers/products.py", "Linear.__call__", "compile_step")


class Price(NamedTuple):
    """The time and the messages of one run of a kernel."""

    bound: str  # what takes the time: products, memory, network or start
    seconds: float
    memory_seconds: float = 0.0  # for its bytes alone
    sent: float = 0.0  # bytes that a device sends


@dataclass(frozen=True)
class Operation:
    """A kernel, its price, and where it comes from."""

    kernel: Kernel
    work: str  # its class
    line: Line | None  # of this project, that made it
    backward: bool
    price: Price

    @property
    def name(self) -> str:
        """The line that made it, or else its kernel."""
        what = self.kernel.collective or self.work
        if self.line is None:
            return f"{self.kernel.instruction.name.rstrip('.0123456789')} ({what})"
        function = self.line.function.replace(".<locals>", "").removesuffix(".__call__")
        backward = ", backward" if self.backward else ""
        return f"{self.line.file}:{self.line.line} {function}{backward} ({what})"


@dataclass(frozen=True)
class Row:
    """The sum of some operations on one device in one step."""

    name: str
    seconds: float
    flops: float
    bytes: float
    sent: float
    kernels: int
    bound: str  # of the operation that takes longest


@dataclass(frozen=True)
class Cost:
    operations: list[Operation]
    unknown_loops: int  # whose trip count is not known; their bodies count once

    @property
    def seconds(self) -> float:
        """Seconds of a step that does one thing after another."""
        return total(self.operations, lambda x: x.price.seconds)

    @property
    def hidden_seconds(self) -> float:
        """Seconds of a step that hides its communication, and a TPU's copies to the chip, under its work.

        The memory still moves all bytes, and the network all messages.
        """
        return max(
            total(self.operations, lambda x: 0.0 if x.kernel.runs_under_others else x.price.seconds),
            total(self.operations, lambda x: x.price.memory_seconds),
            total(self.operations, lambda x: x.price.seconds if x.kernel.collective else 0.0),
        )

    def by_class(self) -> list[Row]:
        """Return the classes of work in the order of CLASSES, then communication by mesh axes."""
        rows = self.rows(lambda x: x.work)
        order = [*CLASSES, *sorted(rows)]
        return sorted(rows.values(), key=lambda row: order.index(row.name))

    def by_line(self) -> list[Row]:
        """Return what each line of this project costs, forward and backward apart, the costliest first."""
        return sorted(self.rows(lambda x: x.name).values(), key=lambda row: -row.seconds)

    def rows(self, name: Callable[[Operation], str]) -> dict[str, Row]:
        groups: dict[str, list[Operation]] = {}
        for x in self.operations:
            groups.setdefault(name(x), []).append(x)
        return {
            name: Row(
                name=name,
                seconds=total(group, lambda x: x.price.seconds),
                flops=total(group, lambda x: x.kernel.flops),
                bytes=total(group, lambda x: x.kernel.bytes),
                sent=total(group, lambda x: x.price.sent),
                kernels=sum(x.kernel.times for x in group),
                bound=max(group, key=lambda x: x.price.seconds * x.kernel.times).price.bound,
            )
            for name, group in groups.items()
        }


def total(operations: list[Operation], number: Callable[[Operation], float]) -> float:
    return sum(number(x) * x.kernel.times for x in operations)


def estimate(program: Program, target: Target, mesh_shape: dict[str, int]) -> Cost:
    """Price a program for the devices of a mesh, whose axes' sizes are given in order."""
    operations = []
    for kernel in kernels(program):
        parts = parts_of(program, kernel)
        lines = next((lines for part in parts if (lines := program.source(part))), [])
        if kernel.collective:
            work, price = f"network: {axes(kernel, mesh_shape)}", send(kernel, target)
        else:
            work, price = work_of(kernel, [part.op_name for part in parts]), compute(kernel, target)
        backward = "transpose(jvp" in kernel.instruction.op_name
        operations.append(Operation(kernel, work, own_line(lines), backward, price))
    return Cost(operations, unknown_loops(program))


def compute(kernel: Kernel, target: Target) -> Price:
    device = target.device
    peak = device.peak / 2 if kernel.dtype == "f32" and device.is_gpu else device.peak
    times = {
        "products": kernel.flops / (PRODUCT * peak),
        "memory": kernel.bytes / (MEMORY * device.bandwidth),
    }
    start = START if device.is_gpu else 0.0
    bound = max(times, key=lambda name: times[name])
    bound_by = bound if times[bound] >= start else "start"
    return Price(bound_by, times[bound] + start, memory_seconds=times["memory"])


def send(kernel: Kernel, target: Target) -> Price:
    device = target.device
    n = max((len(group) for group in kernel.groups), default=target.count)
    hosts = max((len({i // GPUS_PER_HOST for i in group}) for group in kernel.groups), default=1)
    if kernel.collective in ("collective-permute", "collective-broadcast"):
        sent = across = float(kernel.message)
    else:
        twice = 2 if kernel.collective == "all-reduce" else 1
        sent = twice * (n - 1) / n * kernel.message
        across = twice * (hosts - 1) / n * kernel.message  # each GPU's share
    seconds = sent / (NETWORK * device.link)
    if hosts > 1 and device.between_hosts:
        seconds = max(seconds, across / (NETWORK * device.between_hosts))
    return Price("network", seconds + (START if device.is_gpu else 0.0), sent=sent)


def axes(kernel: Kernel, mesh_shape: dict[str, int]) -> str:
    """Name the axes of the mesh along which a collective's devices differ."""
    differ: set[str] = set()
    for group in kernel.groups:
        places = np.array(np.unravel_index(group, tuple(mesh_shape.values())))
        differ |= {name for name, place in zip(mesh_shape, places, strict=True) if len(set(place)) > 1}
    return ",".join(name for name in mesh_shape if name in differ) or "all"


def parts_of(program: Program, kernel: Kernel) -> list[Instruction]:
    """Return a kernel's instruction, and of a fusion those that it holds, products first."""
    x = kernel.instruction
    parts = [part for name in x.called("calls") for part in program.computations[name].instructions]
    return [x, *sorted(parts, key=lambda part: part.opcode not in ("dot", "convolution"))]


def work_of(kernel: Kernel, op_names: list[str]) -> str:
    """Return the class of a kernel that computes, from the innermost `jax.named_scope` of its operation."""
    for op_name in op_names:
        if scopes := re.findall(r"\b(attention|loss|optimizer)\b", op_name):
            return scopes[-1]
    if kernel.flops:
        return "matrix products"
    return "copies" if kernel.instruction.opcode in COPIES else "norms and elementwise"


def own_line(lines: list[Line]) -> Line | None:
    """Return the innermost line of this project that says what is computed, its file relative to the root."""
    ours = [line._replace(file=line.file.removeprefix(ROOT)) for line in lines if line.file.startswith(ROOT)]
    telling = [line for line in ours if line.file not in GENERAL and line.function not in GENERAL]
    return next(iter(telling or ours), None)
