"""LoRA: a frozen matrix with two thin ones beside it, drawn to scale. For chapter 16 of the book.

python -m docs.figures.lora
"""

from docs.figures import BLUE, GREY, ORANGE
from docs.figures._motion import Movie, box, text

SIDE, RANK = 120, 8  # of a matrix, in pixels: rank 51 of 768
X, W, A, B, Y = 20, 180, 330, 360, 530  # from the left
TOP = 40


def main() -> None:
    movie = Movie(670, 218, 1, "y = x W + (x A) B: W is frozen, A and B are trained, and drawn to scale")
    middle = TOP + SIDE / 2
    for name, x in (("x", X), ("y", Y)):
        movie.add(box(x, middle - RANK / 2, SIDE, RANK, "#9aa1ac"))
        movie.add(text(x + SIDE / 2, middle - 14, name, anchor="middle"))
    movie.add(box(W, TOP, SIDE, SIDE, BLUE))
    movie.add(text(W + SIDE / 2, middle + 4, "W, frozen", "white", anchor="middle"))
    movie.add(text(W + SIDE / 2, TOP + SIDE + 18, "D x D", GREY, anchor="middle"))
    movie.add(box(A, TOP, RANK, SIDE, ORANGE))
    movie.add(text(A + RANK / 2, TOP - 10, "A", ORANGE, anchor="middle"))
    movie.add(text(A + RANK / 2, TOP + SIDE + 18, "D x r", GREY, anchor="middle"))
    movie.add(box(B, middle - RANK / 2, SIDE, RANK, ORANGE))
    movie.add(text(B + SIDE / 2, middle - 14, "B", ORANGE, anchor="middle"))
    movie.add(text(B + SIDE / 2, TOP + SIDE + 18, "r x D, zero at first", GREY, anchor="middle"))
    for x, sign in ((W - 20, "· ("), (A - 15, "+"), (A + 19, "·"), (Y - 25, ")  =")):
        movie.add(text(x, middle + 6, sign, GREY, size=20, anchor="middle"))
    words = (
        "Gradients, moments and checkpoints are of what is orange. Afterwards W + A B is one matrix again."
    )
    movie.add(text(X, TOP + SIDE + 48, words, GREY))
    movie.save("lora")


if __name__ == "__main__":
    main()
