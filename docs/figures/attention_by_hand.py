"""Chapter 3: one query, four keys and four values of two numbers each, so that attention can be drawn.

    python -m docs.figures.attention_by_hand

`docs/interactive/attention.html` draws the same with sliders.
"""

import math

import numpy as np

from docs.figures import BLUE, GREY, LIGHT, ORANGE, save

WORDS = ["the", "cat", "sat", "on"]
VECTORS = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0.5, 1]])  # the chapter's x
KEYS = VECTORS @ [[2, 1], [-1, 2], [-0.5, -1.5]]
VALUES = VECTORS @ [[1, 2], [-2, 1], [0, -2]]
QUERY = VECTORS[3] @ [[0, 1], [1, 0], [0.5, 1]]


def weights(query: np.ndarray) -> np.ndarray:
    """Return softmax(q k / sqrt(2)) over the four keys."""
    scores = KEYS @ query / math.sqrt(2)
    return np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()


def plane(axes, title: str) -> None:
    axes.set(xlim=(-2.8, 2.8), ylim=(-2.8, 2.8), xticks=[], yticks=[], aspect="equal")
    axes.set_title(title)
    axes.axhline(0, color=LIGHT, lw=0.8)
    axes.axvline(0, color=LIGHT, lw=0.8)
    for side in axes.spines.values():
        side.set_visible(False)


def arrow(axes, to: np.ndarray, color: str, text: str) -> None:
    axes.annotate("", to, (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.8})
    beyond = to * (1 + 0.35 / np.linalg.norm(to))
    axes.text(*beyond, text, color=color, ha="center", va="center", fontsize=9)


def draw(axes) -> None:
    w = weights(QUERY)
    keys, bars, values = axes
    plane(keys, "the query of on, the keys")
    for word, key in zip(WORDS, KEYS, strict=True):
        arrow(keys, key, BLUE, word)
    arrow(keys, QUERY, ORANGE, "query")

    bars.bar(WORDS, w, color=ORANGE, width=0.6)
    for i, share in enumerate(w):
        bars.text(i, share + 0.02, f"{share:.2f}", ha="center", color=GREY, fontsize=9)
    bars.set(ylim=(0, 1), yticks=[0, 0.5, 1])
    bars.set_title("softmax: the weights")

    plane(values, "the mean of the values")
    for word, value, share in zip(WORDS, VALUES, w, strict=True):
        values.plot(*value, "o", color=BLUE, ms=3)
        values.scatter(*value, s=900 * share, color=BLUE, alpha=0.25, lw=0)
        values.text(value[0], value[1] + 0.28, word, ha="center", color=BLUE, fontsize=9)
    values.plot(*(w @ VALUES), "o", color=ORANGE, ms=7)
    values.text(*(w @ VALUES - [0, 0.45]), "output", ha="center", color=ORANGE, fontsize=9)


if __name__ == "__main__":
    save("attention_by_hand", draw, ncols=3, height=2.8)
