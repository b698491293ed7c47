"""Chapter 3: the pairs that rope rotates, each at its own speed, and the scores that come of it."""

import numpy as np

from docs.figures import BLUE, GREY, LIGHT, arrow, canvas, save, write
from model import inverse_frequencies

C, T = 8, 24
POSITIONS = (0, 1, 2, 3, 10, 100)
FREQUENCIES = inverse_frequencies(C, 10_000.0)  # radians per position, of the C / 2 pairs


def draw_dials(axes) -> None:
    """Draw a dial for each pair and position: its hand began at three o'clock, at position 0."""
    canvas(axes, 1, 1, "four pairs at six positions")
    axes.set(xlim=(-7.6, 13.8), ylim=(-8.8, 2.4), aspect="equal")
    circle = np.linspace(0, 2 * np.pi, 60)
    for i, frequency in enumerate(FREQUENCIES):
        for j, position in enumerate(POSITIONS):
            x, y, angle = 2.5 * j, -2.5 * i, frequency * position
            axes.plot(x + np.cos(circle), y + np.sin(circle), color=LIGHT, lw=1)
            arrow(axes, (x, y), (x + np.cos(angle), y + np.sin(angle)), color=BLUE)
        write(axes, -1.6, -2.5 * i, f"{frequency:.3g}", align="right")
    for j, position in enumerate(POSITIONS):
        write(axes, 2.5 * j, 1.7, str(position))
    write(axes, -1.6, 1.7, "radians per position", GREY, "right")


def draw_scores(axes) -> None:
    """Draw the score of each query position with each key position, if all vectors are ones."""
    positions = np.arange(T)
    angles = (positions[:, None] - positions)[..., None] * FREQUENCIES
    image = axes.imshow(2 * np.cos(angles).sum(-1), cmap="Oranges", vmin=0, vmax=8, aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, ticks=[0, 4, 8], shrink=0.8)
    bar.outline.set_visible(False)
    axes.set(xlabel="position of the key", ylabel="position of the query")
    axes.set(xticks=[0, 10, 20], yticks=[0, 10, 20])
    axes.set_title("scores of equal vectors")


def draw(axes) -> None:
    draw_dials(axes[0])
    draw_scores(axes[1])


if __name__ == "__main__":
    save("rope", draw, width=7.6, height=3.1, ncols=2, width_ratios=(1.5, 1))
