"""A schedule as text."""

from parallel.pipeline.schedule import BACKWARD, Schedule


def describe(schedule: Schedule) -> str:
    """Describe the ranks' tasks, the timeline, the bubble and what each rank holds."""
    ranks = range(schedule.ranks)
    lines = [f"rank {rank}: {' '.join(map(str, schedule.tasks(rank)))}" for rank in ranks]
    lines += ["", f"{schedule.ticks} ticks; stage.microbatch forward|backward", ""]
    lines += timeline(schedule)
    lines += [
        "",
        f"bubble: a rank is idle for {schedule.bubble:.1%} of the time, if a backward takes {BACKWARD} "
        "forwards and a tick as long as its busiest rank",
        f"stage inputs held at a time, at most, by rank: {', '.join(str(schedule.held(r)) for r in ranks)}",
    ]
    return "\n".join(lines)


def timeline(schedule: Schedule) -> list[str]:
    """Return a line for each rank, with a column `forward|backward` for each tick."""
    cells = [[["", ""] for _ in range(schedule.ticks)] for _ in range(schedule.ranks)]
    for task, tick in schedule.when.items():
        cells[task.stage % schedule.ranks][tick][task.kind == "bwd"] = f"{task.stage}.{task.microbatch}"
    width = max(len(text) for row in cells for cell in row for text in cell)
    rows = [[f"{f or '.':>{width}}|{b or '.':<{width}}" for f, b in row] for row in cells]
    return [f"rank {rank}  {'  '.join(row)}".rstrip() for rank, row in enumerate(rows)]
