"""The pipeline's schedules, moving: what each of four ranks does, and when. For chapter 12 of the book.

    python -m docs.figures.schedules

The bars are those of parallel/pipeline/schedule.py. On a screen they come up as time goes on.
"""

from docs.figures import GREEN, GREY, ORANGE
from docs.figures._motion import Movie, box, text
from docs.timeline import bubble, spans
from parallel.pipeline.schedule import Schedule

BLUES = ("#a9c4ea", "#5f8fd0")  # forwards of a rank's first chunk, and of its second
GREENS = ("#a4d6b6", GREEN)
SCHEDULES = (
    (Schedule("gpipe", 4, 1, 8), "all forwards first"),
    (Schedule("classic", 4, 1, 8), "as most papers have it, if all ranks meet in every tick"),
    (Schedule("1f1b", 4, 1, 8), "twice the head start: forward and backward in every tick"),
    (Schedule("interleaved", 4, 2, 8), "two chunks of half the layers on each rank"),
)
LEFT, TOP, ROW, PANEL, WIDTH = 50, 26, 20, 128, 640
LONGEST = 64  # forwards of a stage that fill the width; interleaved stages are half as long


def main() -> None:
    movie = Movie(
        LEFT + WIDTH + 14, len(SCHEDULES) * PANEL, 14, "What four pipeline ranks do in four schedules"
    )
    for i, (schedule, words) in enumerate(SCHEDULES):
        panel(movie, schedule, words, i * PANEL)
    movie.save("schedules")


def panel(movie: Movie, schedule: Schedule, words: str, y: float) -> None:
    """Draw a timeline, with a curtain before what has not happened yet."""
    scale = WIDTH / LONGEST / schedule.chunks
    end = max(end for _, end in spans(schedule).values()) * scale
    movie.add(f'<g font-weight="600">{text(LEFT, y + 16, schedule.name, size=13)}</g>')
    movie.add(text(LEFT + 90, y + 16, f"{words}; idle {bubble(schedule):.0%}", GREY))
    movie.add(box(LEFT, y + TOP, end, ROW * schedule.ranks, "#f3f4f6"))
    for rank in range(schedule.ranks):
        movie.add(text(LEFT - 8, y + TOP + rank * ROW + 14, f"rank {rank}", GREY, size=10, anchor="end"))
    for task, (start, stop) in spans(schedule).items():
        chunk, rank = divmod(task.stage, schedule.ranks)
        color = (BLUES if task.kind == "fwd" else GREENS)[chunk]
        x, width = LEFT + start * scale, (stop - start) * scale
        movie.add(box(x, y + TOP + rank * ROW, width - 0.8, ROW - 1.5, color))
        if width > 6:
            ink = "white" if color == GREEN else "#1f2937"
            where = x + width / 2, y + TOP + rank * ROW + 13.5
            movie.add(text(*where, str(task.microbatch), ink, size=9, anchor="middle"))
    share = 0.9 * end / WIDTH  # all schedules run at one speed
    curtain = box(LEFT, y + TOP - 1, end + 4, ROW * schedule.ranks + 2, "white")
    # The curtain is wider than the picture, and slides out of it to the right.
    movie.add(f'<g opacity="0.93">{curtain}</g>', 0, share, move=(end + 4, 0), still=0)
    line = box(LEFT - 1, y + TOP - 3, 2, ROW * schedule.ranks + 6, ORANGE)
    movie.add(line, 0, share, move=(end, 0), still=0)


if __name__ == "__main__":
    main()
