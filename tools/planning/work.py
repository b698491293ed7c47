"""List the kernels of a compiled program, with the work of each: FLOPs, bytes and messages.

    for kernel in kernels(program): ...               each with how often it runs

A kernel is an instruction of the entry computation, or of a loop's, a branch's or a call's, that the device
starts by itself; a fusion is one, whatever it holds. flops.py and traffic.py have the rules of the count.

A loop counts its body times its trip count; of a conditional's branches, the one with the most FLOPs counts,
and at a tie the one with the most bytes: some device takes it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tools.planning.flops import product_flops
from tools.planning.program import Computation, Instruction, Program
from tools.planning.traffic import COLLECTIVES, bytes_of, device_groups, read_of, written_by

# Instructions that no kernel is started for.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"),
    *("replica-id", "opt-barrier", "add-dependency", "domain", "get-dimension-size", "iota"),
}


@dataclass(frozen=True)
class Kernel:
    """The work of an instruction, once."""

    instruction: Instruction
    times: int  # how often it runs in one execution of the program
    flops: float = 0.0
    read: int = 0  # bytes
    written: int = 0  # bytes
    dtype: str = ""  # of the operands of its products
    collective: str = ""  # the name of the collective operation, if it is one
    message: int = 0  # bytes of the whole array that a collective moves, as a device sees it
    groups: tuple[tuple[int, ...], ...] = ()  # the devices that take part in it together

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @property
    def runs_under_others(self) -> bool:
        """Whether other kernels run at the same time: collectives, and a TPU's copies to or from the chip."""
        return bool(self.collective) or self.instruction.opcode in ("copy-start", "slice-start")


def kernels(program: Program) -> list[Kernel]:
    """List the kernels that one execution of the program runs on a device."""
    return list(Counter(program).kernels(program.entry, 1))


def unknown_loops(program: Program) -> int:
    """Return how many loops have no trip count to be found. Their bodies count once."""
    every = [(c, x) for c in program.computations.values() for x in c.instructions if x.opcode == "while"]
    return sum(trip_count(program, loop, around) is None for around, loop in every)


class Counter:
    """Walks a program's computations from the entry on."""

    def __init__(self, program: Program):
        self.program = program
        self.flops_of: dict[str, tuple[float, str]] = {}  # computations' products
        self.fused_channels: set[str] = set()  # of collectives within fusions that were met

    def kernels(self, computation: Computation, times: int) -> Iterator[Kernel]:
        for x in computation.instructions:
            if x.opcode == "while":
                trips = trip_count(self.program, x, computation) or 1
                yield from self.kernels(self.computation(x.called("body")[0]), times * trips)
            elif x.opcode == "conditional":
                yield from self.costliest_branch(x, times)
            elif x.opcode in ("call", "async-start"):
                (name,) = x.called("to_apply") or x.called("calls")
                yield from self.kernels(self.computation(name), times)
            elif x.opcode.removesuffix("-start") in COLLECTIVES:
                yield collective(x, computation, times)
            elif x.opcode not in FREE and not x.opcode.endswith(("-done", "-update")):
                if x.opcode == "fusion":
                    yield from self.fused_collectives(x, times)
                yield self.kernel(x, computation, times)

    def fused_collectives(self, fusion: Instruction, times: int) -> Iterator[Kernel]:
        """Yield the collectives within a fusion, once each.

        TPUs fuse one with the kernels that run meanwhile, so that it is in all of them, under one channel.
        """
        fused = self.computation(fusion.called("calls")[0])
        for x in fused.instructions:
            if x.opcode in COLLECTIVES:
                channel = x.attribute("channel_id") or x.name
                if channel not in self.fused_channels:
                    self.fused_channels.add(channel)
                    scattered = x.opcode == "all-reduce" and fused.root.opcode == "dynamic-slice"
                    kernel = collective(x, fused, times)
                    yield replace(kernel, collective="reduce-scatter") if scattered else kernel

    def computation(self, name: str) -> Computation:
        return self.program.computations[name]

    def costliest_branch(self, x: Instruction, times: int) -> Iterator[Kernel]:
        names = x.called("branch_computations") or (
            x.called("true_computation") + x.called("false_computation")
        )
        branches = [list(self.kernels(self.computation(name), times)) for name in names]
        yield from max(
            branches,
            key=lambda branch: (
                sum(kernel.flops * kernel.times for kernel in branch),
                sum((kernel.bytes + kernel.message) * kernel.times for kernel in branch),
            ),
        )

    def kernel(self, x: Instruction, computation: Computation, times: int) -> Kernel:
        operands = [computation.by_name[name] for name in x.operands]
        if x.opcode == "fusion":
            fused = self.computation(x.called("calls")[0])
            flops, dtype = self.products(fused)
            read = sum(
                read_of(fused, parameter, operand)
                for parameter, operand in zip(fused.parameters, operands, strict=True)
            )
            return Kernel(x, times, flops, read, written_by(fused, x), dtype)
        flops, dtype = product_flops(x, computation)
        read, written = bytes_of(x, operands)
        return Kernel(x, times, flops, read, written, dtype)

    def products(self, computation: Computation) -> tuple[float, str]:
        """Return the FLOPs of the products in a fused computation, and their operands' type."""
        if computation.name not in self.flops_of:
            total, dtype = 0.0, ""
            for x in computation.instructions:
                if x.opcode in ("fusion", "call"):
                    flops, of = self.products(
                        self.computation((x.called("calls") or x.called("to_apply"))[0])
                    )
                else:
                    flops, of = product_flops(x, computation)
                total, dtype = total + flops, of or dtype
            self.flops_of[computation.name] = total, dtype
        return self.flops_of[computation.name]


def collective(x: Instruction, computation: Computation, times: int) -> Kernel:
    """Describe a collective: which devices take part, and the bytes that it takes or gives, the larger."""
    operands = sum(computation.by_name[name].tiled_bytes for name in x.operands)
    name = x.opcode.removesuffix("-start")
    result = x.tiled_bytes
    if x.opcode.endswith("-start") and len(x.shapes) > len(x.operands):  # the result has the operands as well
        result -= operands
    message = max(operands, result) if name != "collective-permute" else operands
    return Kernel(x, times, collective=name, message=message, groups=device_groups(x))


def trip_count(program: Program, loop: Instruction, around: Computation) -> int | None:
    """Return how often a loop of the computation `around` runs its body; None if that cannot be found.

    XLA notes it for GPUs and CPUs. Otherwise it is read from the condition `tuple[k] < limit`, the step that
    the body adds to tuple[k], and the start that the loop is given.
    """
    if found := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.text):
        return int(found[1])
    condition = program.computations[loop.called("condition")[0]]
    body = program.computations[loop.called("body")[0]]
    if condition.root.opcode != "compare" or "direction=LT" not in condition.root.text:
        return None
    counter, limit = (condition.by_name[name] for name in condition.root.operands)
    k = int(counter.attribute("index") or -1)
    given = around.by_name[loop.operands[0]]
    if counter.opcode != "get-tuple-element" or given.opcode != "tuple" or body.root.opcode != "tuple":
        return None
    next_one = body.by_name[body.root.operands[k]]
    steps = [literal(body, name) for name in next_one.operands] if next_one.opcode == "add" else []
    known = [literal(condition, limit.name), literal(around, given.operands[k]), *steps]
    numbers = [number for number in known if number is not None]
    if len(numbers) != 3:
        return None
    end, start, step = numbers
    return -(-(end - start) // step)


def literal(computation: Computation, name: str) -> int | None:
    """Return the integer that an instruction stands for; None if it is no constant."""
    x = computation.by_name[name]
    while x.opcode in ("copy", "bitcast", "convert"):
        x = computation.by_name[x.operands[0]]
    number = x.text.partition(")")[0].lstrip("(") if x.opcode == "constant" else ""
    return int(number) if re.fullmatch(r"-?\d+", number) else None
