"""Chapter 3: the numbers of all heads side by side, split into heads, and merged again."""

import numpy as np

from docs.figures import BLUE, GREEN, GREY, ORANGE, arrow, canvas, save, tile, write

T, H, C = 4, 3, 2
COLORS = (BLUE, ORANGE, GREEN)
WIDE, HIGH = 0.62, 0.44  # of a cell
MIDDLE, HEAD = 3.3, 2.1  # of the picture; from one head down to the next


def grid(axes, left: float, middle: float, cells: np.ndarray, colors, numbers: bool) -> None:
    """Draw a matrix whose columns have these colours, with its numbers or without."""
    for (t, i), number in np.ndenumerate(cells):
        x, y = left + i * WIDE, middle + (T / 2 - t - 1) * HIGH
        tile(axes, x, y, WIDE, HIGH, colors[i], ec="white", alpha=0.22)
        if numbers:
            write(axes, x + WIDE / 2, y + HIGH / 2, str(number), fontsize=8)


def title(axes, x: float, y: float, name: str, shape: str) -> None:
    write(axes, x, y + 0.6, name, align="left")
    write(axes, x, y, shape, GREY, "left", fontsize=8.5)


def draw(axes) -> None:
    canvas(axes, 17.6, 7.4)
    merged = np.arange(T * H * C).reshape(T, H * C)
    heads = merged.reshape(T, H, C).swapaxes(0, 1)
    columns = np.repeat(COLORS, C)
    for left, name, numbers in ((0.2, "x @ W", True), (13.2, "merged", False)):
        grid(axes, left, MIDDLE, merged, columns, numbers)
        title(axes, left, MIDDLE + 1.3, name, "(T, H C) = (4, 6)")
    for left, name, numbers in ((5.9, "q, k or v", True), (9.9, "y", False)):
        title(axes, left, 6.7, name, "(H, T, C) = (3, 4, 2)")
        for h in range(H):
            grid(axes, left, MIDDLE + (1 - h) * HEAD, heads[h], [COLORS[h]] * C, numbers)
    for left, right, text in ((4.15, 5.7, "split"), (11.35, 13.0, "merge")):
        arrow(axes, (left, MIDDLE), (right, MIDDLE))
        write(axes, (left + right) / 2, MIDDLE + 0.4, text, GREY)
    for h in range(H):
        y = MIDDLE + (1 - h) * HEAD
        arrow(axes, (7.35, y), (9.7, y))
        write(axes, 8.5, y + 0.4, "attention", COLORS[h])


if __name__ == "__main__":
    save("heads", draw, width=7.6, height=3.2)
