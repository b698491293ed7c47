"""Chapter 8: two of the changes: how rope turns a query and a key, and the functions of an MLP.

python -m docs.figures.mechanisms
"""

import jax.numpy as jnp
import numpy as np

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, save
from model import ACTIVATIONS

TURN = 0.5  # radians per position


def draw_rope(axes) -> None:
    """Draw a pair of a query's and of a key's numbers, twice two positions apart: the angle stays."""
    for start, x in ((0, 0.0), (3, 3.6)):
        for position, color, name in ((start, BLUE, "key"), (start + 2, ORANGE, "query")):
            angle = TURN * position
            tip = np.array([x + np.cos(angle), np.sin(angle)])
            axes.annotate("", tip, (x, 0), arrowprops={"arrowstyle": "->", "color": color, "lw": 1.8})
            axes.text(x + 1.35 * np.cos(angle), 1.25 * np.sin(angle), f"{name}\nat {position}", color=color,
                      ha="center", va="center", fontsize=8)  # fmt: skip
        arc = np.linspace(TURN * start, TURN * (start + 2), 20)
        axes.plot(x + 0.5 * np.cos(arc), 0.5 * np.sin(arc), color=GREY, lw=1)
        circle = np.linspace(0, 2 * np.pi, 100)
        axes.plot(x + np.cos(circle), np.sin(circle), color=LIGHT, lw=1, zorder=0)
    axes.set(xlim=(-1.1, 4.9), ylim=(-1.3, 1.6), aspect="equal")
    axes.axis("off")
    axes.set_title("rope: two positions apart, one angle")


def draw_activations(axes) -> None:
    x = jnp.linspace(-3, 3, 200)
    axes.plot(x, ACTIVATIONS["gelu"](x), color=GREY, label="gelu")
    axes.plot(x, ACTIVATIONS["relu2"](x), color=BLUE, label="relu2")
    axes.plot(x, ACTIVATIONS["swiglu"](x, 1.0), color=GREEN, label="silu, the gate of swiglu")
    axes.set(ylim=(-0.6, 4), xlabel="x")
    axes.legend(loc="upper left", fontsize="small")
    axes.set_title("activation functions")


def draw(axes) -> None:
    draw_rope(axes[0])
    draw_activations(axes[1])


if __name__ == "__main__":
    save("mechanisms", draw, width=7.6, height=2.6, ncols=2, width_ratios=(1.4, 1))
