"""Chapter 8: the activation functions that an MLP may have.

python -m docs.figures.activations
"""

import jax.numpy as jnp

from docs.figures import BLUE, GREEN, GREY, save
from model import ACTIVATIONS


def draw(axes) -> None:
    x = jnp.linspace(-3, 3, 200)
    axes.plot(x, ACTIVATIONS["gelu"](x), color=GREY, label="gelu")
    axes.plot(x, ACTIVATIONS["relu2"](x), color=BLUE, label="relu2")
    axes.plot(x, ACTIVATIONS["swiglu"](x, 1.0), color=GREEN, label="silu, the gate of swiglu")
    axes.set(ylim=(-0.6, 4), xlabel="x")
    axes.legend(loc="upper left")


if __name__ == "__main__":
    save("activations", draw, width=4.6, height=2.8)
