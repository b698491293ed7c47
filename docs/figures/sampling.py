"""Chapter 14: the probabilities of ten letters under temperature, top-k and top-p."""

import jax
import jax.numpy as jnp

from docs.figures import BLUE, GREY, LIGHT, save
from generation.sampling import keep_top_k, keep_top_p, scale

LETTERS = "eatoinshrz"
LOGITS = jnp.array([[2.5, 2.0, 1.9, 1.2, 0.8, 0.5, 0.1, -0.4, -1.0, -2.0]])
SETTINGS = {
    "the model's own": LOGITS,
    "temperature=0.5": scale(LOGITS, 0.5),
    "temperature=1.5": scale(LOGITS, 1.5),
    "top_k=3": keep_top_k(LOGITS, 3),
    "top_p=0.8": keep_top_p(LOGITS, 0.8),
}


def draw(axes) -> None:
    before = jax.nn.softmax(LOGITS)[0]
    for picture, (name, logits) in zip(axes, SETTINGS.items(), strict=True):
        after = jax.nn.softmax(logits)[0]
        picture.bar(range(len(LETTERS)), before, color=LIGHT)
        picture.bar(range(len(LETTERS)), after, color=BLUE, width=0.5)
        picture.set_title(name, fontsize=9)
        picture.set_xticks(range(len(LETTERS)), LETTERS, fontsize=8)
        picture.tick_params(axis="both", length=0, colors=GREY)
    axes[0].set_ylabel("probability", fontsize=9)


if __name__ == "__main__":
    save("sampling", draw, width=8.4, height=2.1, ncols=len(SETTINGS), sharey=True)
