"""Price a compiled program: the seconds that a device's peaks allow at best, by class of work.

These are lower bounds: docs/planning.md has the rules, and what they leave out.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tools.planning.operations import KINDS, Operation, operations
from tools.planning.program import Computation
from tools.planning.speeds import Speeds, Work, gather
from tools.planning.target import GPUS_PER_HOST, Target


@dataclass(frozen=True)
class Cost:
    operations: list[Operation]
    names: list[str]  # the class of work of each
    works: Work  # of all operations
    speeds: Speeds

    @property
    def seconds(self) -> float:
        """The seconds of a step that does one thing after another."""
        return float(self.speeds.alone(self.works).sum())

    @property
    def hidden_seconds(self) -> float:
        """The seconds of a step that hides messages, and a TPU's copies to the chip, as far as it can."""
        return self.speeds.overlapped(self.works)

    def by_class(self) -> pd.DataFrame:
        """Sum the operations of each class: KINDS in their order, then communication by mesh axes.

        `bound` says what bounds the longest operation: products, memory, network, or its start.
        """
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
        table = pd.DataFrame(columns | {"name": self.names}).sort_values("seconds", ascending=False)
        sums = table.groupby("name").agg(dict.fromkeys(columns, "sum") | {"bound": "first"})
        order = [name for name in (*KINDS, *sorted(self.names)) if name in sums.index]
        return sums.loc[list(dict.fromkeys(order))]


def estimate(program: Computation, target: Target, mesh_shape: dict[str, int]) -> Cost:
    """Price a program for the devices of a mesh, whose axes' sizes are given in order."""
    found = operations(program)
    axes = [mesh_axes(x, mesh_shape) if x.collective else "" for x in found]
    names = [f"network: {along}" if x.collective else x.kind for x, along in zip(found, axes, strict=True)]
    works = gather([work_of(x, target, along) for x, along in zip(found, axes, strict=True)])
    return Cost(found, names, works, target.speeds)


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
