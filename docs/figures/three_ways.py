"""Data, fsdp and tensor, moving: what each of four devices holds and sends. For chapter 11 of the book.

python -m docs.figures.three_ways
"""

from docs.figures import BLUE, GREEN, GREY, ORANGE
from docs.figures._motion import Movie, box, text

N = 4
WIDTH, GAP, LEFT = 150, 18, 20  # of a device, between devices, before the first
CELL_WIDTH, CELL = 40, 15  # of a quarter of an array
COLUMNS = {"weights": 8, "gradients": 55, "batch": 102}  # from a device's left edge
PANEL = 158  # from one way to the next
PALE_BLUE, PALE_GREEN, EMPTY = "#a8c1e8", "#a9d8bd", "#f3f4f6"

# What a device holds, and what it does in each third of the time.
WORDS = {
    "data": (
        "all the weights on each device, a quarter of the batch",
        "forward, backward: nothing is sent",
        "sum the gradients (all-reduce)",
        "all make the same update",
    ),
    "fsdp": (
        "a quarter of the weights, a quarter of the batch",
        "gather a layer's weights (all-gather)",
        "compute with them, let them go",
        "sum gradients, keep yours",
    ),
    "tensor": (
        "a quarter of the heads and of the MLP, all of the batch",
        "each computes with its part",
        "sum the streams, 4 times a layer",
        "gradients: nothing is sent",
    ),
}


def at(device: int, column: str, part: int, y: float) -> tuple[float, float, float, float]:
    """Return the place and size of a quarter of one of a device's arrays."""
    return LEFT + device * (WIDTH + GAP) + COLUMNS[column], y + 44 + part * (CELL + 2), CELL_WIDTH, CELL


def frame(movie: Movie, y: float, name: str, holds: str) -> None:
    movie.add(f'<g font-weight="600">{text(LEFT, y + 16, f"--mesh={name}:4", size=14)}</g>')
    movie.add(text(LEFT + 145, y + 16, holds, color=GREY))
    for d in range(N):
        x = LEFT + d * (WIDTH + GAP)
        movie.add(box(x, y + 24, WIDTH, 92, "white", GREY))
        for column, offset in COLUMNS.items():
            movie.add(text(x + offset, y + 38, column, color=GREY, size=9))
            for part in range(N):
                movie.add(box(*at(d, column, part, y), EMPTY))


def phases(movie: Movie, y: float, *words: str) -> None:
    """Write a line below a panel for each third of the time; all of them where nothing moves."""
    for i, line in enumerate(words):
        x, line = LEFT + i * 225, f"{i + 1}. {line}"
        movie.add(text(x, y + 133, line, color="#9aa1ac", size=11))
        movie.add(text(x, y + 133, line, size=11), i / 3 + 0.005, (i + 1) / 3 - 0.005)


def pass_around(movie: Movie, y: float, column: str, color: str, start: float, end: float) -> None:
    """Have a quarter go from every device to the next, three times."""
    for turn in range(N - 1):
        first = start + turn * (end - start) / (N - 1)
        last = first + 0.8 * (end - start) / (N - 1)
        for d in range(N):
            place = at(d, column, (d - turn) % N, y)
            far = (WIDTH + GAP) * (1 if d < N - 1 else 1 - N)
            movie.add(box(*place, color), first, last, move=(far, 0), still=0)


def everywhere(movie: Movie, y: float, column: str, color: str, *time: float, parts="all", still=1.0) -> None:
    """Fill an array on each device: all of its quarters, its own, or the others."""
    for d in range(N):
        for part in range(N):
            if parts == "all" or (part == d) == (parts == "own"):
                movie.add(box(*at(d, column, part, y), color), *time, still=still)


def data(movie: Movie, y: float) -> None:
    everywhere(movie, y, "weights", BLUE)
    everywhere(movie, y, "batch", ORANGE, parts="own")
    everywhere(movie, y, "gradients", PALE_GREEN, 0.28, 0.64, still=0)
    pass_around(movie, y, "gradients", GREEN, 0.36, 0.6)
    everywhere(movie, y, "gradients", GREEN, 0.62, 0.98)


def fsdp(movie: Movie, y: float) -> None:
    everywhere(movie, y, "weights", BLUE, parts="own")
    everywhere(movie, y, "batch", ORANGE, parts="own")
    pass_around(movie, y, "weights", BLUE, 0.03, 0.24)
    everywhere(movie, y, "weights", PALE_BLUE, 0.25, 0.5, parts="others")
    everywhere(movie, y, "gradients", PALE_GREEN, 0.5, 0.7, still=0)
    pass_around(movie, y, "gradients", GREEN, 0.69, 0.88)
    everywhere(movie, y, "gradients", GREEN, 0.89, 0.99, parts="own")


def tensor(movie: Movie, y: float) -> None:
    everywhere(movie, y, "weights", BLUE, parts="own")
    everywhere(movie, y, "batch", ORANGE)
    pass_around(movie, y, "batch", "#8c4a08", 0.36, 0.62)
    everywhere(movie, y, "gradients", GREEN, 0.75, 0.99, parts="own")


def main() -> None:
    panels = {"data": data, "fsdp": fsdp, "tensor": tensor}
    width = 2 * LEFT + N * WIDTH + (N - 1) * GAP
    movie = Movie(
        width, len(panels) * PANEL, 12, "What four devices hold and send with data, fsdp and tensor"
    )
    for i, (name, panel) in enumerate(panels.items()):
        holds, *words = WORDS[name]
        frame(movie, i * PANEL, name, holds)
        panel(movie, i * PANEL)
        phases(movie, i * PANEL, *words)
    movie.save("three_ways")


if __name__ == "__main__":
    main()
