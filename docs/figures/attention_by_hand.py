"""Chapter 3: one query, four keys and four values of two numbers each, so that attention can be drawn.

`docs/interactive/attention.html` draws the same with sliders.
"""

import math

import numpy as np
from scipy.special import softmax

from docs.figures import BLUE, GREY, LIGHT, ORANGE, arrow, canvas, save, write

WORDS = ["the", "cat", "sat", "on"]
VECTORS = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0.5, 1]])  # the chapter's x
KEYS = VECTORS @ [[2, 1], [-1, 2], [-0.5, -1.5]]
VALUES = VECTORS @ [[1, 2], [-2, 1], [0, -2]]
QUERY = VECTORS[3] @ [[0, 1], [1, 0], [0.5, 1]]


def weights(query: np.ndarray) -> np.ndarray:
    """Return softmax(q k / sqrt(2)) over the four keys."""
    return softmax(KEYS @ query / math.sqrt(2))


def plane(axes, title: str) -> None:
    canvas(axes, 1, 1, title)
    axes.set(xlim=(-2.8, 2.8), ylim=(-2.8, 2.8), aspect="equal")
    axes.axhline(0, color=LIGHT, lw=0.8)
    axes.axvline(0, color=LIGHT, lw=0.8)


def vector(axes, to: np.ndarray, color: str, text: str) -> None:
    arrow(axes, (0, 0), to, color=color)
    write(axes, *to * (1 + 0.35 / np.linalg.norm(to)), text, color)


def draw(axes) -> None:
    w = weights(QUERY)
    keys, bars, values = axes
    plane(keys, "the query of on, the keys")
    for word, key in zip(WORDS, KEYS, strict=True):
        vector(keys, key, BLUE, word)
    vector(keys, QUERY, ORANGE, "query")

    bars.bar(WORDS, w, color=ORANGE, width=0.6)
    for i, share in enumerate(w):
        write(bars, i, share + 0.05, f"{share:.2f}", GREY)
    bars.set(ylim=(0, 1), yticks=[0, 0.5, 1])
    bars.set_title("softmax: the weights")

    plane(values, "the mean of the values")
    for word, value, share in zip(WORDS, VALUES, w, strict=True):
        values.plot(*value, "o", color=BLUE, ms=3)
        values.scatter(*value, s=900 * share, color=BLUE, alpha=0.25, lw=0)
        write(values, value[0], value[1] + 0.45, word, BLUE)
    values.plot(*(w @ VALUES), "o", color=ORANGE, ms=7)
    write(values, *(w @ VALUES - [0, 0.4]), "output", ORANGE)


if __name__ == "__main__":
    save("attention_by_hand", draw, ncols=3, height=2.8)
