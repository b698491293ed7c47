"""Chapter 7: the schedules of the learning rate, and what they do in a valley with noise.

The valley is a toy: steep across, nearly flat along, and each gradient is off by noise across. Gradient
descent's expected height there can be computed exactly, so nothing is drawn at random.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from config.options import Options
from docs.figures import BLUE, GREEN, GREY, ORANGE, save
from training.optimizer import learning_rate

STEPS = 1000
HIGH = 0.15
STEEP, FLAT = 10.0, 0.03  # the curvatures across the valley and along it
NOISE = 3.0  # the standard deviation of a gradient, across
START = (4.0, 30.0)  # across and along
LINES: dict[str, dict[str, Any]] = {
    "constant": {"schedule": "constant"},
    "cosine": {"schedule": "cosine"},
    "wsd": {"schedule": "wsd"},
    "constant, a tenth": {"schedule": "constant", "learning_rate": HIGH / 10},
}
COLORS = dict(zip(LINES, (GREY, BLUE, ORANGE, GREEN), strict=True))


def rates(own: dict[str, Any]) -> Float[np.ndarray, " steps"]:
    """Return the learning rate of each step, as training has it."""
    length = {"max_iters": STEPS, "lr_decay_iters": STEPS, "warmup_iters": STEPS // 20}
    values: dict[str, Any] = {"learning_rate": HIGH, "min_lr": HIGH / 10} | length | own
    options = Options(**values)
    return np.array([learning_rate(options, step) for step in range(STEPS)])


def heights(rates: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
    """Return the expected height before each step. The gradient is (STEEP x + noise, FLAT y)."""
    squared, y = START[0] ** 2, START[1]  # the expectation of x^2, and y
    found = []
    for rate in rates:
        found.append((STEEP * squared + FLAT * y**2) / 2)
        squared = (1 - rate * STEEP) ** 2 * squared + (rate * NOISE) ** 2
        y = (1 - rate * FLAT) * y
    return np.array(found)


def draw(axes) -> None:
    for name, own in LINES.items():
        rate = rates(own)
        height = heights(rate)
        axes[0].plot(rate, color=COLORS[name], label=name)
        axes[1].plot(height, color=COLORS[name], label=name)
        late = STEPS * 4 // 5
        print(f"{name:18} height {height[late]:.2f} at step {late}, {height[-1]:.2f} at the end")
    axes[0].set(xlabel="step", ylim=(0, 1.25 * HIGH))
    axes[0].set_title("the learning rate")
    axes[0].legend(loc="upper right", ncols=2, fontsize=8.5)
    axes[1].set(xlabel="step", yscale="log")
    axes[1].set_title("height in a noisy valley")


if __name__ == "__main__":
    save("learning_rates", draw, ncols=2, height=3.2)
