"""The ring, moving: four devices sum an array that each has a version of. For chapter 11 of the book.

    python -m docs.figures.ring

The array is cut into as many parts as there are devices. In each of n - 1 turns every device passes one part
to its neighbour, which adds its own; then each has one part of the sum, and n - 1 turns more pass those
around.
"""

from docs.figures import BLUE, GREEN, GREY, ORANGE
from docs.figures._motion import Movie, box, text

N = 4  # devices
TURNS = 2 * (N - 1)
REST = N - 1  # the turn after which the still picture is: each device has one part of the sum
COLORS = (BLUE, ORANGE, GREEN, "#8a5fb0")
WIDTH, CELL, GAP, TOP = 130, 26, 30, 62  # of a device's column, of a part's row, between columns, above all


def turns() -> list[list[tuple[int, int, int]]]:
    """Return what is sent in each turn: (device, part, terms that the part sent is the sum of)."""
    scatter = [[(d, (d - t) % N, t + 1) for d in range(N)] for t in range(N - 1)]
    gather = [[(d, (d + 1 - t) % N, N) for d in range(N)] for t in range(N - 1)]
    return scatter + gather


def main() -> None:
    step = 0.94 / TURNS  # of the time; the last moments show the end
    movie = Movie(
        N * WIDTH + (N - 1) * GAP + 40,
        TOP + N * CELL + 34,
        seconds=14,
        title="Four devices pass parts of an array around a ring: three turns to sum, three to share",
    )

    def x(device: int) -> float:
        return 20 + device * (WIDTH + GAP)

    def cell(device: int, part: int, terms: int) -> str:
        width = (WIDTH - 8) * terms / N
        return box(x(device) + 4, TOP + part * CELL + 3, width, CELL - 6, COLORS[part])

    for d in range(N):
        movie.add(box(x(d), TOP - 2, WIDTH, N * CELL + 4, "white", GREY))
        movie.add(text(x(d) + WIDTH / 2, TOP - 10, f"device {d}", anchor="middle"))
        for part in range(N):
            movie.add(box(x(d) + 4, TOP + part * CELL + 3, WIDTH - 8, CELL - 6, "#f3f4f6"))
    rest = (REST - 0.1) * step  # between two turns

    def there(start: float, end: float) -> float:
        return float(start <= rest < end)

    has = {(d, part): 1 for d in range(N) for part in range(N)}
    since = dict.fromkeys(has, 0.0)
    for turn, sent in enumerate(turns()):
        start, end = turn * step, (turn + 0.8) * step
        phase = f"turn {turn + 1} of {TURNS}: " + (
            "sum as you pass on" if turn < N - 1 else "pass on the sums"
        )
        movie.add(text(20, 24, phase, size=14), start, (turn + 1) * step - 0.005, still=0)
        for d, part, terms in sent:
            to = (d + 1) % N
            movie.add(cell(d, part, terms), start, end, move=(x(to) - x(d), 0), still=0)
        for d, part, terms in sent:
            key = ((d + 1) % N, part)
            movie.add(cell(*key, has[key]), since[key], end, still=there(since[key], end))
            has[key], since[key] = (terms + 1 if turn < N - 1 else N), end
    movie.add(text(20, 24, "every device has the sum of all", size=14), 0.945, 1, still=0)
    half = f"after turn {REST} of {TURNS}: each device has one part of the sum, and now passes it on"
    movie.add(text(20, 24, half, size=14), 2, 2)  # in the still picture alone
    for key, terms in has.items():
        movie.add(cell(*key, terms), since[key], 1, still=there(since[key], 1))
    foot = "A bar a quarter full is one device's part; a full one is the sum of all four."
    movie.add(text(20, TOP + N * CELL + 22, foot, color=GREY))
    movie.save("ring")


if __name__ == "__main__":
    main()
