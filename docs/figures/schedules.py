"""Chapter 12: the pipeline's schedules, and what each of four ranks does when.

The orders are those of parallel/pipeline/schedule.py.
"""

from docs.figures import GREEN, GREY, LIGHT, canvas, save, tile, write
from docs.timeline import asynchronous, bubble, lockstep, make_schedule, microbatches_held

BLUES = ("#a9c4ea", "#5f8fd0")  # forwards of a rank's first chunk, and of its second
GREENS = ("#a4d6b6", GREEN)
SCHEDULES = (
    ("gpipe", 1, lockstep, "in lockstep"),
    ("classic", 1, asynchronous, "asynchronous, as in the papers"),
    ("classic", 1, lockstep, "in lockstep"),
    ("1f1b", 1, lockstep, "in lockstep, our default"),
    ("interleaved", 2, lockstep, "in lockstep, two chunks on each rank"),
)
TOP, ROW, PANEL, WIDTH = 26, 20, 128, 640
LONGEST = 64  # forwards of a stage that fill the width; interleaved stages are half as long


def draw(axes) -> None:
    canvas(axes, WIDTH, len(SCHEDULES) * PANEL - 20)
    axes.invert_yaxis()
    for i, schedule in enumerate(SCHEDULES):
        draw_schedule(axes, i * PANEL, *schedule)


def draw_schedule(axes, y: float, name: str, chunks: int, clock, words: str) -> None:
    """Draw when each rank does what on a clock, lockstep or asynchronous."""
    schedule = make_schedule(name, 4, chunks, 8)
    scale = WIDTH / LONGEST / schedule.chunks
    spans = clock(schedule)
    held = ", ".join(str(microbatches_held(schedule, rank, clock)) for rank in range(schedule.ranks))
    write(axes, 0, y + 13, name, align="left", weight="bold")
    found = f"{words}: idle {bubble(schedule, clock):.0%}, holds {held} microbatches"
    write(axes, 90, y + 13, found, GREY, "left")
    end = max(end for _, end in spans.values()) * scale
    tile(axes, 0, y + TOP, end, ROW * schedule.ranks, LIGHT, alpha=0.3)
    for rank in range(schedule.ranks):
        write(axes, -8, y + TOP + rank * ROW + 10, f"rank {rank}", GREY, "right", fontsize=8)
    for task, (start, stop) in spans.items():
        chunk, rank = divmod(task.stage, schedule.ranks)
        color = (BLUES if task.kind == "fwd" else GREENS)[chunk]
        x, top, width = start * scale, y + TOP + rank * ROW, (stop - start) * scale
        tile(axes, x, top, width - 0.8, ROW - 1.5, color)
        if width > 6:
            ink = "white" if color == GREEN else "black"
            write(axes, x + width / 2, top + 9.5, str(task.microbatch), ink, fontsize=7)


if __name__ == "__main__":
    save("schedules", draw, width=7.6, height=6.6)
