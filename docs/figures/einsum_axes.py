"""Chapter 3: attention's two products, with a colour for each axis.

python -m docs.figures.einsum_axes
"""

from matplotlib.patches import Rectangle

from docs.figures import BLUE, GREEN, GREY, ORANGE, save

SIZES = {"t": 1.9, "s": 1.3, "c": 0.8}
COLORS = {"t": ORANGE, "s": BLUE, "c": GREEN}


def matrix(axes, x: float, y: float, name: str, rows: str, columns: str) -> None:
    """Draw a matrix around x, y, with its first axis downward."""
    w, h = SIZES[columns], SIZES[rows]
    left, top = x - w / 2, y + h / 2
    axes.add_patch(Rectangle((left, top - h), w, h, fc="#f3f4f6", ec="none"))
    axes.plot([left, left], [top, top - h], color=COLORS[rows], lw=4)
    axes.plot([left, left + w], [top, top], color=COLORS[columns], lw=4)
    axes.text(left - 0.14, y, rows, color=COLORS[rows], ha="right", va="center", weight="bold")
    axes.text(x, top + 0.12, columns, color=COLORS[columns], ha="center", va="bottom", weight="bold")
    axes.text(x, y, name, ha="center", va="center", fontsize=9)


def draw(axes) -> None:
    axes.set(xlim=(0, 13), ylim=(-0.4, 5.6), xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)
    lines = (
        (4.2, "tc,sc->ts", ("q", "t", "c"), ("k", "s", "c"), ("scores", "t", "s"), "c"),
        (1.3, "ts,sc->tc", ("weights", "t", "s"), ("v", "s", "c"), ("y", "t", "c"), "s"),
    )
    for y, subscripts, a, b, result, summed in lines:
        x = 0.1
        for letter in subscripts:
            axes.text(
                x, y, letter, color=COLORS.get(letter, GREY), fontsize=13, family="monospace", va="center"
            )
            x += 0.34
        for x, each in zip((5.0, 7.6, 10.6), (a, b, result), strict=True):
            matrix(axes, x, y, *each)
        axes.text(6.3, y, "×", ha="center", va="center", color=GREY, fontsize=13)
        axes.text(9.0, y, "=", ha="center", va="center", color=GREY, fontsize=13)
        axes.text(0.1, y - 0.6, f"sum over {summed}", color=COLORS[summed], fontsize=9)
    axes.text(0.1, -0.3, "t: position of the query", color=ORANGE, fontsize=9)
    axes.text(4.3, -0.3, "s: position of the key", color=BLUE, fontsize=9)
    axes.text(8.9, -0.3, "c: numbers of a vector", color=GREEN, fontsize=9)


if __name__ == "__main__":
    save("einsum_axes", draw, height=3.4)
