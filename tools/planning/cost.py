"""Turn the work of a compiled program into seconds: the least that a device's peaks allow, by class of work.

    cost = estimate(program, target, mesh_shape)
    cost.seconds, cost.by_class(), cost.by_line()

A kernel takes the longer of its FLOPs at 80% of the dense bfloat16 peak and its bytes at 90% of the memory's
bandwidth, and on a GPU 1.5 microseconds more, for its start. (A TPU runs the whole step as one program.)
Products of float32 run at half the peak on a GPU, as TF32, and at the whole on a TPU, which rounds them to
bfloat16.

A collective over n devices sends (n - 1) / n of the array (an all-reduce twice that, a permutation all of
it), at 80% of the link; between machines, each GPU sends its share of that through its own network card.

These are bounds from below. What is not in them: tiles that do not fill the units, a cache that is missed,
latency of the network, the loop around the step. A pipeline's ticks count as their busiest rank's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.planning.program import Line, Program
from tools.planning.target import GPUS_PER_HOST, Target
from tools.planning.work import Kernel, kernels, unknown_loops

PRODUCT, MEMORY, NETWORK = 0.8, 0.9, 0.8  # shares of the peaks that a good kernel reaches
START = 1.5e-6  # seconds that a GPU takes to start a kernel

ROOT = f"{Path(__file__).resolve().parents[2]}/"

CLASSES = ("matrix products", "attention", "loss", "norms and elementwise", "optimizer", "copies")

# Lines in these say how something is computed; the lines that call them say what.
GENERAL = ("layers/products.py",)
GENERAL_FUNCTIONS = ("Linear.__call__", "compile_step")


@dataclass(frozen=True)
class Operation:
    """A kernel with its price: `seconds` for one run of it."""

    kernel: Kernel
    work: str  # its class
    line: Line | None  # of our code, that made it
    backward: bool
    seconds: float
    memory_seconds: float  # of these, those that its bytes take by themselves
    bound: str  # "products", "memory", "network" or "start": what takes that long
    sent: float  # bytes that a device sends


@dataclass(frozen=True)
class Row:
    """Some operations together. All numbers are for one device and one step."""

    name: str
    seconds: float
    flops: float
    bytes: float
    sent: float
    kernels: int
    bound: str

    @classmethod
    def of(cls, name: str, operations: list[Operation]) -> "Row":
        def total(number: Callable[[Operation], float]) -> float:
            return sum(number(x) * x.kernel.times for x in operations)

        return cls(
            name=name,
            seconds=total(lambda x: x.seconds),
            flops=total(lambda x: x.kernel.flops),
            bytes=total(lambda x: x.kernel.bytes),
            sent=total(lambda x: x.sent),
            kernels=sum(x.kernel.times for x in operations),
            bound=max(operations, key=lambda x: x.seconds * x.kernel.times).bound,
        )


@dataclass(frozen=True)
class Cost:
    operations: list[Operation]
    unknown_loops: int  # whose bodies count once, because their trip count is not known

    @property
    def seconds(self) -> float:
        """Seconds of a step that does one thing after another."""
        return self.total(lambda x: x.seconds)

    @property
    def hidden_seconds(self) -> float:
        """Seconds of a step whose communication, and whose copies to a TPU's chip, go on behind its work.

        The memory still has to move all that is copied, and the network all that is sent.
        """
        return max(
            self.total(lambda x: 0.0 if x.kernel.moves_behind_others else x.seconds),
            self.total(lambda x: x.memory_seconds),
            self.total(lambda x: x.seconds if x.kernel.collective else 0.0),
        )

    def total(self, number: Callable[[Operation], float]) -> float:
        return sum(number(x) * x.kernel.times for x in self.operations)

    def by_class(self) -> list[Row]:
        """Return the classes of work in a fixed order, then the mesh axes' communication."""
        found = {x.work for x in self.operations}
        names = [name for name in CLASSES if name in found] + sorted(found - set(CLASSES))
        return [Row.of(name, [x for x in self.operations if x.work == name]) for name in names]

    def by_line(self) -> list[Row]:
        """Return what each line of our code costs, forward and backward apart, the costliest first."""
        groups: dict[str, list[Operation]] = {}
        for x in self.operations:
            groups.setdefault(describe(x), []).append(x)
        rows = [Row.of(name, operations) for name, operations in groups.items()]
        return sorted(rows, key=lambda row: -row.seconds)


def estimate(program: Program, target: Target, mesh_shape: dict[str, int]) -> Cost:
    """Price a program for the devices of a mesh, whose axes' sizes are given in order."""
    pricing = Pricing(program, target, mesh_shape)
    return Cost([pricing.operation(kernel) for kernel in kernels(program)], unknown_loops(program))


class Pricing:
    def __init__(self, program: Program, target: Target, mesh_shape: dict[str, int]):
        self.program, self.target, self.mesh_shape = program, target, mesh_shape
        self.sources: dict[str, list[Line]] = {}

    def operation(self, kernel: Kernel) -> Operation:
        lines = self.lines(kernel)
        backward = "transpose(jvp" in kernel.instruction.text
        if kernel.collective:
            sent, seconds = self.send(kernel)
            work = f"network: {self.axes(kernel)}"
            return Operation(kernel, work, own_line(lines), backward, seconds, 0.0, "network", sent)
        seconds, memory_seconds, bound = self.compute(kernel)
        work = work_of(kernel, lines)
        return Operation(kernel, work, own_line(lines), backward, seconds, memory_seconds, bound, 0.0)

    def compute(self, kernel: Kernel) -> tuple[float, float, str]:
        """Return a kernel's seconds, those that its bytes alone take, and what bounds it."""
        device = self.target.device
        peak = device.peak / 2 if kernel.dtype == "f32" and device.is_gpu else device.peak
        times = {
            "products": kernel.flops / (PRODUCT * peak),
            "memory": kernel.bytes / (MEMORY * device.bandwidth),
        }
        start = START if device.is_gpu else 0.0
        bound = max(times, key=lambda name: times[name])
        return times[bound] + start, times["memory"], bound if times[bound] >= start else "start"

    def send(self, kernel: Kernel) -> tuple[float, float]:
        """Return the bytes that a device sends for a collective, and the seconds that takes."""
        device = self.target.device
        n = max((len(group) for group in kernel.groups), default=self.target.count)
        hosts = max((len({i // GPUS_PER_HOST for i in group}) for group in kernel.groups), default=1)
        start = START if device.is_gpu else 0.0
        if kernel.collective in ("collective-permute", "collective-broadcast"):
            sent, across = float(kernel.message), float(kernel.message)
        else:
            twice = 2 if kernel.collective == "all-reduce" else 1
            sent = twice * (n - 1) / n * kernel.message
            across = twice * (hosts - 1) / n * kernel.message  # each GPU's share
        seconds = sent / (NETWORK * device.link)
        if hosts > 1 and device.between_hosts:
            seconds = max(seconds, across / (NETWORK * device.between_hosts))
        return sent, seconds + start

    def axes(self, kernel: Kernel) -> str:
        """Name the axes of the mesh along which a collective's devices differ."""
        shape = tuple(self.mesh_shape.values())
        differ: set[str] = set()
        for group in kernel.groups:
            places = np.array(np.unravel_index(group, shape))
            differ |= {
                name for name, place in zip(self.mesh_shape, places, strict=True) if len(set(place)) > 1
            }
        return ",".join(name for name in self.mesh_shape if name in differ) or "all"

    def lines(self, kernel: Kernel) -> list[Line]:
        """Return the Python lines of a kernel; of a fusion without any, those of something it holds."""
        x = kernel.instruction
        if lines := self.program.source(x):
            return lines
        for name in x.called("calls"):
            inside = self.program.computations[name].instructions
            for part in sorted(inside, key=lambda x: x.opcode not in ("dot", "convolution")):
                if lines := self.program.source(part):
                    return lines
        return []


def work_of(kernel: Kernel, lines: list[Line]) -> str:
    """Return the class of a kernel that computes, by the innermost lines that tell."""
    for line in lines:
        function = line.function.rpartition(".")[2]
        if "/optax/" in line.file or line.file.endswith(("training/optimizer.py", "equinox/_update.py")):
            return "optimizer"
        if line.file.endswith("training/chunked_loss.py"):
            return "loss"
        if "attention" in function or line.file.endswith("layers/attention.py"):
            return "attention"
    if kernel.flops:
        return "matrix products"
    moves = ("copy", "copy-start", "slice-start", "transpose", "bitcast-convert")
    return "copies" if kernel.instruction.opcode in moves else "norms and elementwise"


def own_line(lines: list[Line]) -> Line | None:
    """Return the innermost line of this project that says what is computed, its file relative to the root."""
    ours = [line._replace(file=line.file.removeprefix(ROOT)) for line in lines if line.file.startswith(ROOT)]
    telling = [line for line in ours if line.file not in GENERAL and line.function not in GENERAL_FUNCTIONS]
    return next(iter(telling), next(iter(ours), None))


def describe(x: Operation) -> str:
    """Name an operation: the line that made it, or else its kernel."""
    what = x.kernel.collective or x.work
    if x.line is None:
        return f"{x.kernel.instruction.name.rstrip('.0123456789')} ({what})"
    function = x.line.function.replace(".<locals>", "").removesuffix(".__call__")
    return f"{x.line.file}:{x.line.line} {function}{', backward' if x.backward else ''} ({what})"
