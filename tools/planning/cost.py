"""Price a compiled program: the seconds that a device's peaks allow at best, by class of work and by line.

    cost = estimate(program, target, mesh_shape)
    cost.seconds, cost.by_class(), cost.by_line()

These are lower bounds: docs/planning.md has the rules, and what they leave out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd

from model import GPTConfig
from tools.planning.operations import KINDS, Operation, operations, unknown_loops
from tools.planning.program import Program
from tools.planning.speeds import Speeds, Work, gather
from tools.planning.target import GPUS_PER_HOST, Target

ROOT = f"{Path(__file__).resolve().parents[2]}/"
# These say how something is computed. The lines that call them say what.
GENERAL = {"layers/products.py", "Linear.__call__", "compile_step"}


class Row(NamedTuple):
    """The sum of some operations in one step."""

    name: str
    seconds: float
    flops: float
    bytes: float
    sent: float
    kernels: int
    bound: str  # of the operation that takes longest: by products, memory, network or start


@dataclass(frozen=True)
class Cost:
    operations: list[Operation]
    names: list[str]  # the class of work of each
    works: Work  # of all operations
    speeds: Speeds
    unknown_loops: int  # whose trip count is not known; their bodies count once

    @property
    def seconds(self) -> float:
        """The seconds of a step that does one thing after another."""
        return float(self.speeds.alone(self.works).sum())

    @property
    def hidden_seconds(self) -> float:
        """The seconds of a step that hides messages, and a TPU's copies to the chip, as far as it can."""
        return self.speeds.overlapped(self.works)

    def by_class(self) -> list[Row]:
        """Return the classes of work in the order of KINDS, then communication by mesh axes."""
        order = [*KINDS, *sorted(self.names)]
        return sorted(self.rows(self.names), key=lambda row: order.index(row.name))

    def by_line(self) -> list[Row]:
        """Return the lines of this project, forward and backward apart, the costliest first."""
        return sorted(self.rows(map(line_of, self.operations)), key=lambda row: -row.seconds)

    def rows(self, names: Iterable[str]) -> list[Row]:
        """Sum the operations that have the same name."""
        works, alone = self.works, self.speeds.alone(self.works)
        bounds = pd.DataFrame(self.speeds.bounds(works))
        columns = {
            "seconds": alone,
            "flops": works.times * works.flops,
            "bytes": works.times * works.bytes,
            "sent": works.times * works.sent,
            "kernels": works.times,
            "bound": bounds.idxmax(axis=1).where(bounds.max(axis=1) >= self.speeds.starts(works), "start"),
        }
        table = pd.DataFrame(columns).assign(name=list(names)).sort_values("seconds", ascending=False)
        sums = table.groupby("name").agg(dict.fromkeys(columns, "sum") | {"bound": "first"})
        return [Row(*row) for row in sums.itertuples()]

    def sent_along(self, axes: str) -> float:
        """Return the bytes that a device sends along these mesh axes together."""
        return sum(row.sent for row in self.by_class() if row.name == f"network: {axes}")


def estimate(program: Program, target: Target, mesh_shape: dict[str, int]) -> Cost:
    """Price a program for the devices of a mesh, whose axes' sizes are given in order."""
    found = operations(program)
    axes = [mesh_axes(x, mesh_shape) if x.collective else "" for x in found]
    names = [f"network: {along}" if x.collective else x.kind for x, along in zip(found, axes, strict=True)]
    works = gather([work_of(x, target, along) for x, along in zip(found, axes, strict=True)])
    return Cost(found, names, works, target.speeds, unknown_loops(program))


def work_of(x: Operation, target: Target, axes: str) -> Work:
    """Return what an operation asks of a device, a message along these mesh axes of its network."""
    if not x.collective:
        under = x.runs_under_others
        return Work(x.times, x.flops, x.dtype == "f32", x.bytes, x.exponentials, under_others=under)
    groups = x.groups or (range(target.count),)  # none: all devices together
    n = max(map(len, groups))
    hosts = max(len({i // GPUS_PER_HOST for i in group}) for group in groups)
    # Each GPU sends its share to another machine through its own network card.
    between = bytes_sent(x, n, hosts) if hosts > 1 else 0.0
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
