"""Chapter 3: a block and its residual stream.

python -m docs.figures.block
"""

from docs.figures import BLUE, GREEN, GREY, ORANGE, save
from docs.figures._boxes import arrow, box, canvas


def draw(axes) -> None:
    canvas(axes, 15, 4.6)
    stream = 0.9
    axes.annotate(
        "",
        (14.7, stream),
        (0.3, stream),
        arrowprops={"arrowstyle": "-|>", "color": ORANGE, "lw": 4, "shrinkA": 0},
    )
    axes.text(0.3, stream - 0.55, "residual stream x  (B, T, D)", color=ORANGE, fontsize=9)
    for left, part, color, text in (
        (1.2, "attention", BLUE, "each token attends to others"),
        (8.2, "MLP", GREEN, "each token by itself"),
    ):
        norm, body, plus = left + 0.7, left + 3.2, left + 5.4
        arrow(axes, (left + 0.7, stream), (norm, 2.6), "a copy")
        box(axes, norm, 3.0, "norm", GREY, width=1.4)
        arrow(axes, (norm + 0.7, 3.0), (body - 1.2, 3.0))
        box(axes, body, 3.0, part, color, width=2.4)
        axes.text(body, 3.75, text, ha="center", color=color, fontsize=9)
        axes.plot([body + 1.2, plus], [3.0, 3.0], color=GREY, lw=1.4)
        arrow(axes, (plus, 3.0), (plus, stream + 0.22))
        axes.plot(plus, stream, "o", ms=15, mfc="white", mec=ORANGE, mew=1.6, zorder=3)
        axes.text(plus, stream, "+", ha="center", va="center", fontsize=12, zorder=4)


if __name__ == "__main__":
    save("block", draw, height=2.5)
