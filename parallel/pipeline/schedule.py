"""A pipeline's schedule as data: what each rank does, and when. It needs no JAX.

Rank r of the mesh axis `stage` has the stages r, r + ranks, r + 2 ranks, ..., its chunks. Schedules differ
in how many forwards a rank does before its first backward:

    gpipe        all of them                                                  arXiv:1811.06965
    1f1b         2 (ranks - 1 - r), then one forward and one backward in turn
    interleaved  (chunks - 1) ranks more: a chunk takes as many microbatches
                 as there are ranks, then the next chunk does                 arXiv:2104.04473

In a tick each rank does at most one forward, then at most one backward; what it sends arrives in the next.
With the ranks - 1 - r forwards of most papers (arXiv:1806.03377), neighbours would wait for each other, so
`1f1b` does twice as many. A rank then holds up to 2 ranks - 3 stage inputs, for any number of microbatches.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from common.errors import UserError


class Task(NamedTuple):
    """The forward or the backward of a stage for a microbatch."""

    kind: str  # fwd or bwd
    stage: int
    microbatch: int


class Row(NamedTuple):
    """A rank's work in a tick, in integers. A stage of -1 means none.

    A slot keeps an array from its arrival to its last use. One more slot takes what is not used.
    """

    forward: int  # stage; never the last, whose forward is a part of its backward
    forward_microbatch: int
    forward_slot: int  # of its input
    backward: int  # stage
    backward_microbatch: int
    backward_slot: int  # of its input
    cotangent_slot: int  # of the gradient of its output
    input_arrives: int  # the slot for what the rank before sends in this tick
    cotangent_arrives: int  # and for what the rank after sends


@dataclass(frozen=True)
class Schedule:
    """The order and time of all ranks' tasks. Raises UserError for an impossible schedule."""

    name: str  # gpipe, 1f1b or interleaved
    ranks: int
    chunks: int
    microbatches: int

    def __post_init__(self):
        if self.chunks > 1 and self.name == "1f1b":
            raise UserError(f"virtual_stages={self.chunks}, but 1f1b has one chunk per rank: use interleaved")
        if self.name == "interleaved" and self.microbatches % self.ranks:
            raise UserError(
                f"{self.microbatches} microbatches must be a multiple of {self.ranks} stages for the "
                "interleaved schedule: change gradient_accumulation_steps, or use 1f1b"
            )

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def tasks(self, rank: int) -> list[Task]:
        R, C, M = self.ranks, self.chunks, self.microbatches
        group = R if self.name == "interleaved" else M  # microbatches through a chunk before the next chunk
        turns = [(c, m) for i in range(0, M, group) for c in range(C) for m in range(i, i + group)]
        forwards = [Task("fwd", c * R + rank, m) for c, m in turns]
        backwards = [Task("bwd", (C - 1 - c) * R + rank, m) for c, m in turns]
        ahead = self.ahead(rank)
        pairs = zip(forwards[ahead:], backwards, strict=False)
        by_turns = [task for pair in pairs for task in pair]
        return forwards[:ahead] + by_turns + backwards[len(by_turns) // 2 :]

    def ahead(self, rank: int) -> int:
        """Return how many forwards a rank does before its first backward."""
        if self.name == "gpipe":
            return self.chunks * self.microbatches
        return (self.chunks - 1) * self.ranks + 2 * (self.ranks - 1 - rank)  # 1f1b has one chunk

    @cached_property
    def when(self) -> dict[Task, int]:
        """The tick of every task: the earliest that its rank's order and its inputs allow."""
        tick, when, waiting = 0, {}, [self.tasks(rank)[::-1] for rank in range(self.ranks)]
        while any(waiting):
            for tasks in waiting:
                for kind in ("fwd", "bwd"):
                    if tasks and tasks[-1].kind == kind and self._ready(tasks[-1], when, tick):
                        when[tasks.pop()] = tick
            tick += 1
        return when

    def _ready(self, task: Task, when: dict[Task, int], tick: int) -> bool:
        """Tell whether the task's input from another rank is there."""
        kind, stage, microbatch = task
        before = stage - 1 if kind == "fwd" else stage + 1
        return before in (-1, self.stages) or when.get(Task(kind, before, microbatch), tick) < tick

    @property
    def ticks(self) -> int:
        return max(self.when.values()) + 1

    def table(self) -> tuple[list[list[Row]], int, int]:
        """Return each tick's rows, one for each rank, and the numbers of input and cotangent slots."""
        last, when, R = self.stages - 1, self.when, self.ranks
        slot, n = self._allocate("fwd", +1)
        dslot, dn = self._allocate("bwd", -1)
        rows = [[Row(-1, 0, n, -1, 0, n, dn, n, dn) for _ in range(R)] for _ in range(self.ticks)]

        def change(tick, stage, **fields):
            rows[tick][stage % R] = rows[tick][stage % R]._replace(**fields)

        for (kind, s, m), tick in when.items():
            used = slot.get((s, m), n)
            if kind == "bwd":
                change(tick, s, backward=s, backward_microbatch=m, backward_slot=used)
                change(tick, s, cotangent_slot=dslot.get((s, m), dn))
                change(tick, s - 1, cotangent_arrives=dslot.get((s - 1, m), dn))
            elif s < last:
                change(tick, s, forward=s, forward_microbatch=m, forward_slot=used)
                change(tick, s + 1, input_arrives=slot[s + 1, m])
        return rows, n, dn

    def _allocate(self, kind: str, step: int) -> tuple[dict[tuple[int, int], int], int]:
        """Give slots to what tasks of a kind send to stage + `step`, by (stage, microbatch). Count them.

        It arrives at the end of a tick, when what the tick used is free, and is kept until its backward.
        """
        sent = ((tick, s + step, m) for (k, s, m), tick in self.when.items() if k == kind)
        slots, free_from = {}, {}  # free_from[rank][slot] is a tick
        for arrives, stage, m in sorted(x for x in sent if 0 <= x[1] < self.stages):
            ends = free_from.setdefault(stage % self.ranks, [])
            slot = next((i for i, end in enumerate(ends) if end <= arrives), len(ends))
            ends[slot : slot + 1] = [self.when[Task("bwd", stage, m)]]
            slots[stage, m] = slot
        return slots, max(map(len, free_from.values()), default=0)
