"""The pipeline's schedules: what each of four ranks does, and when. For chapter 12 of the book.

    python -m docs.figures.schedules

The orders are those of parallel/pipeline/schedule.py. An orange line goes over them as time goes on.
"""

from docs.figures import GREEN, GREY, ORANGE
from docs.figures._motion import Movie, box, text
from docs.timeline import Classic, asynchronous, bubble, inputs_held, lockstep
from parallel.pipeline.schedule import Schedule

BLUES = ("#a9c4ea", "#5f8fd0")  # forwards of a rank's first chunk, and of its second
GREENS = ("#a4d6b6", GREEN)
SCHEDULES = (
    (Schedule("gpipe", 4, 1, 8), lockstep, "gpipe", "in lockstep"),
    (Classic("1f1b", 4, 1, 8), asynchronous, "1F1B", "asynchronous, as in the papers"),
    (Classic("1f1b", 4, 1, 8), lockstep, "classic", "the same 1F1B in lockstep"),
    (Schedule("1f1b", 4, 1, 8), lockstep, "1f1b", "eager 1F1B in lockstep, our default"),
    (Schedule("interleaved", 4, 2, 8), lockstep, "interleaved", "in lockstep, two chunks on each rank"),
)
LEFT, TOP, ROW, PANEL, WIDTH = 50, 26, 20, 128, 640
LONGEST = 64  # forwards of a stage that fill the width; interleaved stages are half as long


def main() -> None:
    movie = Movie(
        LEFT + WIDTH + 14, len(SCHEDULES) * PANEL, 10, "What four pipeline ranks do in five schedules"
    )
    for i, schedule in enumerate(SCHEDULES):
        panel(movie, *schedule, i * PANEL)
    movie.save("schedules")


def panel(movie: Movie, schedule: Schedule, clock, name: str, words: str, y: float) -> None:
    """Draw when each rank does what on a clock, lockstep or asynchronous."""
    scale = WIDTH / LONGEST / schedule.chunks
    spans = clock(schedule)
    end = max(end for _, end in spans.values()) * scale
    held = ", ".join(str(inputs_held(schedule, rank, clock)) for rank in range(schedule.ranks))
    found = f"{words}: idle {bubble(schedule, clock):.0%}, holds {held} inputs"
    movie.add(f'<g font-weight="600">{text(LEFT, y + 16, name, size=13)}</g>')
    movie.add(text(LEFT + 96, y + 16, found, GREY))
    movie.add(box(LEFT, y + TOP, end, ROW * schedule.ranks, "#f3f4f6"))
    for rank in range(schedule.ranks):
        movie.add(text(LEFT - 8, y + TOP + rank * ROW + 14, f"rank {rank}", GREY, size=10, anchor="end"))
    for task, (start, stop) in spans.items():
        chunk, rank = divmod(task.stage, schedule.ranks)
        color = (BLUES if task.kind == "fwd" else GREENS)[chunk]
        x, width = LEFT + start * scale, (stop - start) * scale
        movie.add(box(x, y + TOP + rank * ROW, width - 0.8, ROW - 1.5, color))
        if width > 6:
            ink = "white" if color == GREEN else "#1f2937"
            where = x + width / 2, y + TOP + rank * ROW + 13.5
            movie.add(text(*where, str(task.microbatch), ink, size=9, anchor="middle"))
    share = 0.9 * end / WIDTH  # all schedules run at one speed
    line = box(LEFT - 1, y + TOP - 3, 2, ROW * schedule.ranks + 6, ORANGE)
    movie.add(line, 0, share, move=(end, 0), still=0)


if __name__ == "__main__":
    main()
