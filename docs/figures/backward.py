"""Chapter 6: a gradient on its way back through two layers, with the numbers of the chapter."""

import jax
import jax.numpy as jnp

from docs.figures import BLUE, GREEN, GREY, ORANGE, arrow, box, canvas, save, write

x, w1, w2 = jnp.array([1.0, 2.0]), jnp.array([[1.0, -1.0], [0.5, -1.0]]), jnp.array([0.5, 1.0])
PARTS = ("x @ w1", BLUE), ("max(z, 0)", GREY), ("h @ w2", BLUE), ("(y - 3)² / 2", GREEN)
PLACES = [1.0, 6.65, 11.1, 15.3]  # of the numbers between the parts
EDGES = [(1.8, 3.3), (5.5, 7.8), (10.0, 12.2), (14.4, 16.3)]


def forward(x, w1, w2, zero=(0.0, 0.0, 0.0)):
    """Return the loss, and z, h and y. The gradient by each of `zero` is that by z, h or y."""
    z = x @ w1 + zero[0]
    h = jnp.maximum(z, 0) + zero[1]
    y = h @ w2 + zero[2]
    return 0.5 * (y - 3) ** 2, (z, h, y)


def numbers(array) -> str:
    if array.ndim == 2:
        return "\n".join(map(numbers, array))
    return "[" + "  ".join(f"{value + 0.0:g}" for value in jnp.atleast_1d(array).tolist()) + "]"


def draw(axes) -> None:
    zero = (jnp.zeros(2), jnp.zeros(2), jnp.zeros(()))
    gradient = jax.value_and_grad(forward, argnums=(0, 1, 2, 3), has_aux=True)
    (loss, (z, h, y)), (dx, dw1, dw2, (dz, dh, dy)) = gradient(x, w1, w2, zero)
    canvas(axes, 20, 7)
    for (text, color), at in zip(PARTS, (4.4, 8.9, 13.3, 17.4), strict=True):
        box(axes, at, 4.0, text, color, width=2.2, height=1.3)
    values = zip("xzhy", (x, z, h, y), (dx, dz, dh, dy), strict=True)
    for (name, value, back), place, (start, end) in zip(values, PLACES, EDGES, strict=True):
        arrow(axes, (start, 4.3), (end, 4.3), color=BLUE)
        arrow(axes, (end, 3.7), (start, 3.7), color=ORANGE)
        write(axes, place, 5.15, f"{name} = {numbers(value)}", BLUE)
        write(axes, place, 2.9, f"d{name} = {numbers(back)}", ORANGE)
    arrow(axes, (18.5, 4.3), (19.3, 4.3), color=BLUE)
    write(axes, 17.4, 5.15, f"loss = {float(loss):g}", BLUE)
    for at, name, weight, back in ((4.4, "w1", w1, dw1), (13.3, "w2", w2, dw2)):
        write(axes, at, 5.6, f"{name} =\n{numbers(weight)}", BLUE, va="bottom")
        arrow(axes, (at, 5.5), (at, 4.65), color=BLUE)
        arrow(axes, (at, 3.35), (at, 1.9), color=ORANGE)
        write(axes, at, 1.75, f"d{name} =\n{numbers(back)}", ORANGE, va="top")


if __name__ == "__main__":
    save("backward", draw, width=8, height=3)
