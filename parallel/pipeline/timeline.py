"""A schedule in print: as text, and as the picture that every paper on pipelines has."""

from parallel.pipeline.schedule import BACKWARD, Schedule


def describe(schedule: Schedule) -> str:
    """Describe the ranks' tasks, the timeline, the bubble and what each rank holds."""
    ranks = range(schedule.ranks)
    lines = [f"rank {rank}: {' '.join(map(str, schedule.tasks(rank)))}" for rank in ranks]
    lines += ["", f"{schedule.ticks} ticks; stage.microbatch forward, and behind a bar backward", ""]
    lines += timeline(schedule)
    lines += [
        "",
        f"bubble: a rank is idle for {schedule.bubble:.1%} of the time, if a backward takes {BACKWARD} "
        "forwards and a tick as long as its busiest rank",
        f"stage inputs held at a time, at most, by rank: {', '.join(str(schedule.held(r)) for r in ranks)}",
    ]
    return "\n".join(lines)


def timeline(schedule: Schedule) -> list[str]:
    """Return a line for each rank, with a column for each tick."""
    cells = [[["", ""] for _ in range(schedule.ticks)] for _ in range(schedule.ranks)]
    for task, tick in schedule.when.items():
        cells[task.stage % schedule.ranks][tick][task.kind == "bwd"] = f"{task.stage}.{task.microbatch}"
    width = max(len(text) for row in cells for cell in row for text in cell)
    rows = [[f"{f or '.':>{width}}|{b or '.':<{width}}" for f, b in row] for row in cells]
    return [f"rank {rank}  {'  '.join(row)}".rstrip() for rank, row in enumerate(rows)]


def draw(schedule: Schedule, path: str) -> None:
    """Draw the timeline: forward, backward and, in white, idle. Raises OSError or ValueError."""
    import matplotlib  # here, because it takes a second and the text does without

    matplotlib.use("agg")
    from matplotlib import pyplot

    colors = {"fwd": pyplot.colormaps["Blues"], "bwd": pyplot.colormaps["Greens"]}
    last = max(end for _, end in schedule.spans.values())
    figure, axes = pyplot.subplots(figsize=(min(40, 2 + last / 5), 1 + 0.4 * schedule.ranks))
    for task, (start, end) in schedule.spans.items():
        rank, chunk = task.stage % schedule.ranks, task.stage // schedule.ranks
        color = colors[task.kind]((chunk + 1) / (schedule.chunks + 1))  # later chunks are darker
        axes.barh(rank, end - start, left=start, height=1, color=color, edgecolor="white", linewidth=0.5)
        axes.text((start + end) / 2, rank, str(task.microbatch), ha="center", va="center", fontsize=7)
    axes.set(xlim=(0, last), xlabel="time, in forwards of a stage", ylabel="rank")
    axes.set_yticks(range(schedule.ranks))
    axes.invert_yaxis()
    axes.set_title(f"{schedule.name}: forward (blue), backward (green), idle {schedule.bubble:.0%}")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
