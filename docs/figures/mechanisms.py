"""Chapter 8: three of the changes: rope's rotation, the activation functions of MLPs, and a softcap.

python -m docs.figures.mechanisms
"""

import jax.numpy as jnp
import numpy as np

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, save
from model import ACTIVATIONS

TURN = 0.5  # radians per position


def draw_rope(axes) -> None:
    """Draw one pair of a query's and a key's numbers, twice two positions apart: the angle is the same."""
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
    axes.set_title("rope: two apart, one angle")


def draw_activations(axes) -> None:
    x = jnp.linspace(-3, 3, 200)
    axes.plot(x, ACTIVATIONS["gelu"](x), color=GREY, label="gelu")
    axes.plot(x, ACTIVATIONS["relu2"](x), color=BLUE, label="relu2")
    axes.plot(x, ACTIVATIONS["swiglu"](x, 1.0), color=GREEN, label="silu, the gate of swiglu")
    axes.set(ylim=(-0.6, 4), xlabel="x")
    axes.legend(loc="upper left", fontsize="small")
    axes.set_title("activation functions")


def draw_bounds(axes) -> None:
    x = np.linspace(-60, 60, 200)
    axes.plot(x, x, color=LIGHT, label="x")
    axes.plot(x, 15 * np.tanh(x / 15), color=BLUE, label="15 tanh(x / 15)")
    axes.set(ylim=(-30, 30), xlabel="a logit")
    axes.legend(loc="upper left", fontsize="small")
    axes.set_title("softcap")


def draw(axes) -> None:
    for one, part in zip(axes, (draw_rope, draw_activations, draw_bounds), strict=True):
        part(one)


if __name__ == "__main__":
    save("mechanisms", draw, width=8.8, height=2.6, ncols=3, width_ratios=(1.3, 1, 1))
