"""Chapter 6: three optimizers go down a narrow valley, and what Muon makes of a matrix.

docs/interactive/optimizers.html draws the same with a slider for the rate.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, save

STEPS, START = 60, (-4.0, 1.4)
OPTIMIZERS = {
    "gradient descent": (optax.identity(), GREY),
    "with momentum": (optax.trace(0.9), GREEN),
    "Adam": (optax.scale_by_adam(0.9, 0.99), ORANGE),
}
RATES = tuple(np.geomspace(1e-3, 3, 200))  # each path is drawn with the rate that ends lowest


def valley(p):
    """Return the height at p: forty times more curved across than along."""
    return 0.5 * (p[0] ** 2 + 40 * p[1] ** 2)


def paths(direction: optax.GradientTransformation) -> np.ndarray:
    """Return the points that an optimizer visits, (rates, STEPS + 1, 2)."""

    def one(rate):
        def step(carry, _):
            p, state = carry
            update, state = direction.update(jax.grad(valley)(p), state, p)
            return (p - rate * update, state), p - rate * update

        return jax.lax.scan(step, (start, direction.init(start)), length=STEPS)[1]

    start = jnp.array(START)
    places = jax.vmap(one)(jnp.array(RATES))
    return np.concatenate([np.broadcast_to(START, (len(RATES), 1, 2)), places], axis=1)


def draw(axes) -> None:
    ends = axes.flat[3]
    ends.set(xscale="log", yscale="log", ylim=(2e-4, 100), xlabel="learning rate")
    ends.set_title(f"height after {STEPS} steps")
    for plane, (name, (direction, color)) in zip(axes.flat[:3], OPTIMIZERS.items(), strict=True):
        tried = paths(direction)
        heights = np.array([valley(places[-1]) for places in tried])
        best = int(np.nanargmin(heights))  # nan: it diverged
        places, rate = tried[best], RATES[best]
        x, y = np.meshgrid(np.linspace(-4.6, 2.6, 80), np.linspace(-1.8, 1.8, 80))
        plane.contour(x, y, valley((x, y)), levels=[0.3, 1.5, 5, 12, 25, 45], colors=LIGHT, linewidths=0.8)
        plane.plot(*places.T, "o-", color=color, ms=2.5, lw=1)
        plane.plot(0, 0, "+", color="black", ms=9)
        plane.set(xticks=[], yticks=[], xlim=(-4.6, 2.6), ylim=(-1.8, 1.8))
        plane.set_title(f"{name}, {rate:.2g}")
        ends.plot(RATES, heights, color=color)
        print(f"{name}, rate {rate:.2g}: from height {valley(START):.0f} to {heights[best]:.2g}")

    gradient = np.random.default_rng(0).normal(size=(32, 4)) @ np.random.default_rng(1).normal(size=(4, 32))
    gradient = jnp.asarray(gradient + 0.5 * np.random.default_rng(2).normal(size=(32, 32)))
    matrix = {"w": optax.contrib.MuonDimensionNumbers(0, 1)}
    muon = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, weight_dimension_numbers=matrix)
    direction, _ = muon.update({"w": gradient}, muon.init({"w": gradient}))
    matrices = gradient, jax.tree.leaves(direction)[0]
    before, after = (np.linalg.svd(np.asarray(w), compute_uv=False) for w in matrices)
    axes.flat[4].bar(range(32), before / before[0], color=GREY)
    axes.flat[4].set_title("singular values: gradient")
    axes.flat[5].bar(range(32), after / after[0], color=BLUE)
    axes.flat[5].set_title("and Muon's direction")
    for bars in axes.flat[4:]:
        bars.set(ylim=(0, 1.05), yticks=[0, 1], xticks=[])


if __name__ == "__main__":
    save("optimizers", draw, nrows=2, ncols=3, height=3.8)
