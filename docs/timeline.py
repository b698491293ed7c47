"""Chapter 12: what each rank of a pipeline does, and when, and what that comes to.

python -m docs.timeline --schedule=interleaved --stages=4 --virtual_stages=2 --microbatches=8
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from config.command_line import Count, command, given
from parallel.pipeline.schedule import Schedule, Task

BACKWARD = 3  # the time of a backward in forwards: recomputation, and two gradients of each product


def describe(schedule: Schedule) -> str:
    ranks = range(schedule.ranks)
    lines = [f"rank {rank}: {' '.join(names(schedule, rank))}" for rank in ranks]
    lines += ["", f"{schedule.ticks} ticks; stage.microbatch forward|backward", ""]
    lines += timeline(schedule)
    lines += [
        "",
        f"bubble: a rank is idle for {bubble(schedule):.1%} of the time, if a backward takes {BACKWARD} "
        "forwards and a tick as long as its busiest rank",
        "stage inputs held at a time, at most, by rank: "
        + ", ".join(str(inputs_held(schedule, rank)) for rank in ranks),
    ]
    return "\n".join(lines)


def names(schedule: Schedule, rank: int) -> list[str]:
    """Name a rank's tasks as JaxPP prints them."""
    return [f"{kind}_{stage}__{microbatch}" for kind, stage, microbatch in schedule.tasks(rank)]


def timeline(schedule: Schedule) -> list[str]:
    """Return a line for each rank, with a column `forward|backward` for each tick."""
    cells = [[["", ""] for _ in range(schedule.ticks)] for _ in range(schedule.ranks)]
    for task, tick in schedule.when.items():
        cells[task.stage % schedule.ranks][tick][task.kind == "bwd"] = f"{task.stage}.{task.microbatch}"
    width = max(len(text) for row in cells for cell in row for text in cell)
    rows = [[f"{f or '.':>{width}}|{b or '.':<{width}}" for f, b in row] for row in cells]
    return [f"rank {rank}  {'  '.join(row)}".rstrip() for rank, row in enumerate(rows)]


def spans(schedule: Schedule) -> dict[Task, tuple[int, int]]:
    """Return the start and end of each task, in forwards. A tick lasts until its busiest rank is done."""
    found, start = {}, 0
    for tick in range(schedule.ticks):
        busy = [start] * schedule.ranks  # until when
        for task in sorted((t for t in schedule.when if schedule.when[t] == tick), key=cost):
            rank = task.stage % schedule.ranks
            found[task] = busy[rank], busy[rank] + cost(task)
            busy[rank] += cost(task)
        start = max(busy)
    return found


def cost(task: Task) -> int:
    return 1 if task.kind == "fwd" else BACKWARD


def bubble(schedule: Schedule) -> float:
    work = schedule.microbatches * schedule.chunks * (1 + BACKWARD)
    return 1 - work / max(end for _, end in spans(schedule).values())


def inputs_held(schedule: Schedule, rank: int) -> int:
    starts, ends = [0] * (schedule.ticks + 1), [0] * (schedule.ticks + 1)
    for task, tick in schedule.when.items():
        if task.stage % schedule.ranks == rank:
            (starts if task.kind == "fwd" else ends)[tick] += 1
    return max(sum(starts[: t + 1]) - sum(ends[:t]) for t in range(schedule.ticks))


@dataclass(frozen=True)
class ScheduleOptions:
    program: ClassVar[str] = "-m docs.timeline"
    purpose: ClassVar[str] = "Print what each rank of a pipeline does, and when."

    schedule: Literal["gpipe", "1f1b", "interleaved", "classic"] = "1f1b"  # classic: 1F1B of most papers
    stages: Count = 4  # ranks: the size of the mesh's stage axis
    virtual_stages: Count = 1  # chunks of layers on each rank
    microbatches: Count = 8  # gradient_accumulation_steps


def main(argv: list[str]) -> None:
    options = ScheduleOptions(**given(argv, ScheduleOptions))
    print(describe(Schedule(options.schedule, options.stages, options.virtual_stages, options.microbatches)))


if __name__ == "__main__":
    command(main)
