"""What a training step asks of its devices: FLOPs, as JAX traces it, and bytes sent, as XLA compiles it."""

import itertools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import jaxprs_in_params


def product_flops(jaxpr: Any) -> float:
    """Return the FLOPs of the matrix products in a jaxpr, on all devices together.

    A product of (m, k) and (k, n) takes 2 m k n. A loop's count as often as it runs, and of a conditional's
    branches the costliest's.
    """
    total = 0.0
    for x in jaxpr.eqns:
        within = [product_flops(inner) for inner in jaxprs_in_params(x.params)]
        match x.primitive.name:
            case "dot_general":
                (contracted, _), _ = x.params["dimension_numbers"]
                lhs, out = x.invars[0].aval, x.outvars[0].aval
                total += 2 * math.prod(lhs.shape[axis] for axis in contracted) * out.size
            case "scan":
                total += x.params["length"] * sum(within)
            case "cond":
                total += max(within)
            case "shard_map":  # traced for one device along the manual axes
                sizes = x.params["mesh"].shape
                total += math.prod(sizes[axis] for axis in x.params["newly_manual_axes"]) * sum(within)
            case _:
                total += sum(within)
    return total


# XLA's optimised HLO is text: computations, which call each other, of instructions, each a line.
#
#     %name = bf16[12,1024]{1,0:T(8,128)} opcode(%operand, ...), key=value, metadata={...}

COMPUTATION = re.compile(r"(?:ENTRY )?%([\w.\-]+) .*\{$")
INSTRUCTION = re.compile(r"  (?:ROOT )?%[\w.\-]+ = (.*?) ([a-z][\w\-]*)\((.*)")
CALLED = re.compile(r"[ ,](?:calls|to_apply|body|\w+_computations?)=(\{[^}]*\}|%[\w.\-]+)")
ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
RING = {  # what each of n devices sends of a collective's result, around a ring
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: n - 1,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}


class Message(NamedTuple):
    kind: str  # one of RING
    axes: str  # of the mesh, along which the devices that take part differ
    times: int  # in a step
    sent: float  # bytes that a device sends each time
    channel: str = ""  # of a message within a fusion


class Program:
    """The text of a compiled program, for a mesh whose axes' sizes are given in order."""

    def __init__(self, text: str, mesh_shape: dict[str, int]):
        self.mesh_shape = mesh_shape
        self.computations: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in text.splitlines():
            if head := COMPUTATION.match(line):
                lines = self.computations[head[1]] = []
                self.entry = head[1]  # the last
            lines.append(line)

    def messages(self) -> list[Message]:
        """Return what a device sends. A TPU's is in all fusions that run meanwhile, and counts once."""
        return list({x.channel or i: x for i, x in enumerate(self.walk(self.entry, 1))}.values())

    def walk(self, name: str, times: int, fused: bool = False) -> Iterator[Message]:
        """Yield the messages of a computation that runs so many times.

        Of a conditional's branches, the one that sends most counts: some device takes it.
        """
        lines = self.computations[name]
        for result, opcode, rest in (x.groups() for x in map(INSTRUCTION.match, lines) if x):
            called = re.findall(r"%([\w.\-]+)", " ".join(CALLED.findall(rest)))
            if opcode == "while":
                yield from self.walk(called[0], times * self.trip_count(rest))
            elif opcode == "conditional":
                branches = [list(self.walk(branch, times)) for branch in called]
                yield from max(branches, key=lambda branch: sum(x.times * x.sent for x in branch))
            elif (kind := opcode.removesuffix("-start")) in RING:
                # A TPU's reduce-scatter is a fusion that sums, and takes a part of the sum.
                sliced = fused and any(re.match(r"  ROOT .* dynamic-slice\(", line) for line in lines)
                groups = device_groups(rest) or [range(math.prod(self.mesh_shape.values()))]
                sent = RING[kind](len(groups[0])) * result_bytes(opcode, result, rest) / (1 + sliced)
                channel = re.search(r"channel_id=\d+", rest) if fused else None
                yield Message(kind, self.axes(groups), times, sent, channel[0] if channel else "")
            elif not opcode.endswith(("-done", "-update")):
                for each in called:
                    yield from self.walk(each, times, fused=opcode == "fusion")

    def trip_count(self, loop: str) -> int:
        """Return how often a loop runs. For TPUs it is its condition's limit, as JAX's loops count from 0."""
        (condition,) = re.findall(r"condition=%([\w.\-]+)", loop)
        found = re.findall(r'"known_trip_count":\{"n":"(\d+)"', loop)
        found += re.findall(r" constant\((\d+)\)", "\n".join(self.computations[condition]))
        if not found:
            print(f"warning: the loop of {condition} has no trip count, and counts once", file=sys.stderr)
        return int(found[0]) if found else 1

    def axes(self, groups: Sequence[Sequence[int]]) -> str:
        """Name the axes of the mesh along which the devices of a group differ."""
        places = [np.unravel_index(group, tuple(self.mesh_shape.values())) for group in groups]
        differ = [any(len(set(place[i])) > 1 for place in places) for i in range(len(self.mesh_shape))]
        return ",".join(itertools.compress(self.mesh_shape, differ))


def result_bytes(opcode: str, result: str, rest: str) -> int:
    """Return the bytes of a collective's result, without its operands, which a started one's has too."""
    arrays = [(numbers(dims), numbers(dtype) or [8]) for dtype, dims in ARRAY.findall(result)]  # pred: 8 bits
    sizes = [math.prod(dims) * bits // 8 for dims, (bits, *_) in arrays]
    operands = rest.partition(")")[0].count("%")
    return sum(sizes[operands:][:operands] if opcode.endswith("-start") and len(sizes) > operands else sizes)


def device_groups(text: str) -> list[list[int]]:
    """Return the groups of devices that take part in a collective together, in any form of HLO's.

    {{0,1},{2,3}}; [2,2]<=[2,2]T(1,0): range(4) reshaped, transposed, reshaped; mesh['a'=2,'b'=2] {'b'}:
    along these axes of a mesh, whose devices are in order, or as device_ids=([2,2]T(1,0)) has them.
    """
    if listed := re.search(r"(?:replica_groups|source_target_pairs)=(\{\{.*?\}\})", text):
        return [numbers(group) for group in re.findall(r"\{[\d, ]+\}", listed[1])]
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?\))\))? \{(.*?)\}", text):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        along = [list(sizes).index(name) for name in re.findall(r"'([^']+)'", mesh[3])]
        shape = np.array(list(sizes.values()), int)
        ids = transposed(mesh[2]) if mesh[2] else np.arange(shape.prod())
        ids = np.moveaxis(ids.reshape(shape), along, range(-len(along), 0)).reshape(-1, shape[along].prod())
        return ids.tolist()
    if tiled := re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text):
        return transposed(tiled[2]).reshape(numbers(tiled[1])).tolist()
    return []


def transposed(text: str) -> np.ndarray:
    """Return the numbers from 0 on that `[2,8]T(1,0)` stands for: reshaped, then transposed if it says so."""
    sizes, _, order = text.partition("T")
    return np.arange(np.prod(numbers(sizes))).reshape(numbers(sizes)).transpose(numbers(order) or None)


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
