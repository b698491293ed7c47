"""Chapter 19: a policy of three arms learns from rewards, with a baseline and without."""

import numpy as np
from scipy.special import softmax

from docs.figures import BLUE, GREY, LIGHT, ORANGE, save, write

REWARD = np.array([10.0, 11.0, 12.0])
STEPS, GROUP, RATE = 150, 8, 0.5
RUNS, DRAWN = 1000, 12  # policies that learn, and how many of them have a line


def learn(baseline: bool) -> np.ndarray:
    """Return the probabilities of each run before each step and after the last, (STEPS + 1, RUNS, 3)."""
    rng, z, found = np.random.default_rng(0), np.zeros((RUNS, 3)), []
    for _ in range(STEPS):
        p = softmax(z, -1)
        found.append(p)
        uniform = rng.random((RUNS, GROUP, 1))
        arms = (uniform > p.cumsum(-1)[:, None, :2]).sum(-1)  # (RUNS, GROUP)
        rewards = REWARD[arms]
        weights = rewards - rewards.mean(-1, keepdims=True) if baseline else rewards
        z = z + RATE * (weights[..., None] * (np.eye(3)[arms] - p[:, None])).mean(1)
    return np.array([*found, softmax(z, -1)])


def draw(axes) -> None:
    for plot, baseline in zip(axes, (True, False), strict=True):
        p = learn(baseline)
        lost = p[-1, :, 2] < 0.5
        name = "with the group's mean as baseline" if baseline else "without a baseline"
        print(f"{name}: {lost.mean():.0%} of {RUNS} runs end at an arm that is not the best")
        entropy = -(p * np.log(np.maximum(p, 1e-30))).sum(-1).mean(-1)
        for run in range(DRAWN):
            plot.plot(p[:, run, 2], color=ORANGE if lost[run] else BLUE, lw=1, alpha=0.8)
        plot.plot(entropy / np.log(3), color=GREY, lw=1.5, ls="--")
        plot.set(title=name, xlabel="step", ylim=(-0.02, 1.02))
        plot.grid(color=LIGHT, lw=0.5)
    axes[0].set_ylabel("probability of the best arm")
    write(axes[0], 30, 0.3, "mean entropy / log 3", GREY, "left")


if __name__ == "__main__":
    save("bandit", draw, ncols=2, sharey=True, height=2.8)
