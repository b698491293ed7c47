"""Chapter 16: LoRA, a frozen matrix with two thin ones beside it, drawn to scale."""

from docs.figures import BLUE, GREY, ORANGE, canvas, save, tile, write

SIDE, RANK = 120, 8  # of a matrix, and of the thin ones: rank 51 of 768
X, W, A, B, Y = 0, 160, 310, 340, 510  # from the left
MIDDLE = 75


def draw(axes) -> None:
    canvas(axes, 640, 152)
    for name, left, color in (("x", X, GREY), ("B", B, ORANGE), ("y", Y, GREY)):
        tile(axes, left, MIDDLE - RANK / 2, SIDE, RANK, color)
        write(axes, left + SIDE / 2, MIDDLE + 14, name, color)
    tile(axes, W, MIDDLE - SIDE / 2, SIDE, SIDE, BLUE)
    write(axes, W + SIDE / 2, MIDDLE, "W, frozen", "white")
    tile(axes, A, MIDDLE - SIDE / 2, RANK, SIDE, ORANGE)
    write(axes, A + RANK / 2, MIDDLE + SIDE / 2 + 10, "A", ORANGE)
    for x, shape in ((W + SIDE / 2, "D × D"), (A, "D × r"), (B + SIDE / 2, "r × D, zero at first")):
        write(axes, x, MIDDLE - SIDE / 2 - 10, shape, GREY)
    for x, sign in ((W - 20, "· ("), (A - 15, "+"), (A + 19, "·"), (Y - 25, ")  =")):
        write(axes, x, MIDDLE, sign, GREY, fontsize=15)


if __name__ == "__main__":
    save("lora", draw, height=1.8)
