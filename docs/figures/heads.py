"""Chapter 3: the numbers of all heads side by side, split into heads, and merged again.

python -m docs.figures.heads
"""

import numpy as np
from matplotlib.patches import Rectangle

from docs.figures import BLUE, GREEN, GREY, ORANGE, save
from docs.figures._boxes import arrow, canvas

T, H, C = 4, 3, 2
COLORS = (BLUE, ORANGE, GREEN)
WIDE, HIGH = 0.62, 0.44  # of a cell


def grid(axes, left: float, top: float, cells: np.ndarray, colors, numbers: bool = True) -> None:
    """Draw a matrix whose columns have these colours, with its numbers or without."""
    for t, row in enumerate(cells):
        for i, number in enumerate(row):
            x, y = left + i * WIDE, top - (t + 1) * HIGH
            axes.add_patch(Rectangle((x, y), WIDE, HIGH, fc=colors[i], ec="white", alpha=0.22))
            if numbers:
                axes.text(x + WIDE / 2, y + HIGH / 2, str(number), ha="center", va="center", fontsize=8)


def draw(axes) -> None:
    canvas(axes, 17.6, 7.4)
    merged = np.arange(T * H * C).reshape(T, H * C)
    heads = merged.reshape(T, H, C).swapaxes(0, 1)
    columns = [color for color in COLORS for _ in range(C)]
    middle = 3.3
    for left, name, numbers in ((0.2, "x @ W", True), (13.2, "merged", False)):
        grid(axes, left, middle + T * HIGH / 2, merged, columns, numbers)
        axes.text(left, middle + T * HIGH / 2 + 0.75, name, fontsize=9)
        axes.text(left, middle + T * HIGH / 2 + 0.25, "(T, H C) = (4, 6)", color=GREY, fontsize=8.5)
    for left, name, numbers in ((5.9, "q, k or v", True), (9.9, "y", False)):
        axes.text(left, 7.0, name, fontsize=9)
        axes.text(left, 6.5, "(H, T, C) = (3, 4, 2)", color=GREY, fontsize=8.5)
        for h in range(H):
            grid(axes, left, 6.3 - h * 2.1, heads[h], [COLORS[h]] * C, numbers)
    for left, right, text in ((4.15, 5.7, "split"), (11.35, 13.0, "merge")):
        arrow(axes, (left, middle), (right, middle))
        axes.text((left + right) / 2, middle + 0.25, text, color=GREY, ha="center", fontsize=9)
    for h in range(H):
        y = 6.3 - h * 2.1 - T * HIGH / 2
        arrow(axes, (7.35, y), (9.7, y))
        axes.text(8.45, y + 0.25, "attention", color=COLORS[h], ha="center", fontsize=9)


if __name__ == "__main__":
    save("heads", draw, width=7.6, height=3.2)
