"""Chapter 6: a gradient on its way back through two layers, with the numbers of the chapter.

python -m docs.figures.backward
"""

import jax
import jax.numpy as jnp

from docs.figures import BLUE, GREEN, GREY, ORANGE, save
from docs.figures._boxes import arrow, box, canvas

x, w1, w2 = jnp.array([1.0, 2.0]), jnp.array([[1.0, -1.0], [0.5, -1.0]]), jnp.array([0.5, 1.0])


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
    gradient = jax.grad(forward, argnums=(0, 1, 2, 3), has_aux=True)
    (dx, dw1, dw2, (dz, dh, dy)), (z, h, y) = gradient(x, w1, w2, zero)
    loss = forward(x, w1, w2)[0]
    canvas(axes, 20, 7)
    parts = [
        (4.4, "x @ w1", BLUE),
        (8.9, "max(z, 0)", GREY),
        (13.3, "h @ w2", BLUE),
        (17.4, "(y - 3)² / 2", GREEN),
    ]
    for at, text, color in parts:
        box(axes, at, 4.0, text, color, width=2.2, height=1.3)
    places = [1.0, 6.65, 11.1, 15.3, 19.4]
    edges = [(1.8, 3.3), (5.5, 7.8), (10.0, 12.2), (14.4, 16.3), (18.5, 19.9)]
    values = zip("xzhy", (x, z, h, y), (dx, dz, dh, dy), strict=True)
    for (name, value, back), place, (start, end) in zip(values, places, edges, strict=False):
        arrow(axes, (start, 4.3), (end, 4.3), color=BLUE)
        arrow(axes, (end, 3.7), (start, 3.7), color=ORANGE)
        axes.text(place, 5.0, f"{name} = {numbers(value)}", color=BLUE, ha="center", fontsize=9)
        axes.text(place, 2.75, f"d{name} = {numbers(back)}", color=ORANGE, ha="center", fontsize=9)
    arrow(axes, (18.5, 4.3), (19.3, 4.3), color=BLUE)
    axes.text(17.4, 5.0, f"loss = {float(loss):g}", color=BLUE, ha="center", fontsize=9)
    for at, name, weight, back in ((4.4, "w1", w1, dw1), (13.3, "w2", w2, dw2)):
        axes.text(at, 5.6, f"{name} =\n{numbers(weight)}", color=BLUE, ha="center", va="bottom", fontsize=9)
        arrow(axes, (at, 5.5), (at, 4.65), color=BLUE)
        arrow(axes, (at, 3.35), (at, 1.9), color=ORANGE)
        axes.text(at, 1.75, f"d{name} =\n{numbers(back)}", color=ORANGE, ha="center", va="top", fontsize=9)


if __name__ == "__main__":
    save("backward", draw, width=8, height=3)
