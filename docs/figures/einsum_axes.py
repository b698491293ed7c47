"""Chapter 3: attention's two products, with a colour for each axis."""

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, canvas, save, tile, write

SIZES = {"t": 1.9, "s": 1.3, "c": 0.8}
COLORS = {"t": ORANGE, "s": BLUE, "c": GREEN}
MEANING = {"t": "position of the query", "s": "position of the key", "c": "numbers of a vector"}
PRODUCTS = (
    (4.2, "tc,sc->ts", ("q", "t", "c"), ("k", "s", "c"), ("scores", "t", "s"), "c"),
    (1.3, "ts,sc->tc", ("weights", "t", "s"), ("v", "s", "c"), ("y", "t", "c"), "s"),
)


def matrix(axes, x: float, y: float, name: str, rows: str, columns: str) -> None:
    """Draw a matrix around x, y, with its first axis downward."""
    w, h = SIZES[columns], SIZES[rows]
    left, top = x - w / 2, y + h / 2
    tile(axes, left, top - h, w, h, LIGHT, alpha=0.4)
    tile(axes, left - 0.06, top - h, 0.12, h, COLORS[rows])
    tile(axes, left, top - 0.06, w, 0.12, COLORS[columns])
    write(axes, left - 0.25, y, rows, COLORS[rows], weight="bold")
    write(axes, x, top + 0.3, columns, COLORS[columns], weight="bold")
    write(axes, x, y, name)


def draw(axes) -> None:
    canvas(axes, 13, 5.8)
    for y, subscripts, a, b, result, summed in PRODUCTS:
        for i, letter in enumerate(subscripts):
            color = COLORS.get(letter, GREY)
            write(axes, 0.2 + 0.34 * i, y, letter, color, fontsize=13, family="monospace")
        for x, each in zip((5.0, 7.6, 10.6), (a, b, result), strict=True):
            matrix(axes, x, y, *each)
        write(axes, 6.3, y, "×", GREY, fontsize=13)
        write(axes, 9.0, y, "=", GREY, fontsize=13)
        write(axes, 0.1, y - 0.6, f"sum over {summed}", COLORS[summed], "left")
    for x, (letter, meaning) in zip((0.1, 4.3, 8.9), MEANING.items(), strict=True):
        write(axes, x, 0.05, f"{letter}: {meaning}", COLORS[letter], "left")


if __name__ == "__main__":
    save("einsum_axes", draw, height=3.4)
