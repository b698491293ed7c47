"""How often to save a checkpoint: the share of time lost, by the interval. For chapter 13 of the book.

python -m docs.figures.checkpoints
"""

import numpy as np
from matplotlib.axes import Axes

from docs.figures import BLUE, GREEN, GREY, ORANGE, save

SAVING = 0.5  # minutes that a checkpoint holds the run up
FAILURES = {"every 3 hours": (180, ORANGE), "once a day": (1440, BLUE), "once a week": (10080, GREEN)}


def draw(axes: Axes) -> None:
    minutes = np.geomspace(1.6, 1300, 200)
    for name, (mean, color) in FAILURES.items():
        # Half of an interval is done again after a failure, and each interval pays for one checkpoint.
        axes.semilogx(minutes, 100 * (SAVING / minutes + minutes / (2 * mean)), color=color, label=name)
        best = np.sqrt(2 * SAVING * mean)
        axes.plot(best, 100 * (SAVING / best + best / (2 * mean)), "o", color=color)
    axes.set_yticks(range(0, 21, 5))
    axes.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
    axes.set(ylim=(0, 20), xlabel="minutes between two checkpoints", ylabel="% of the time lost")
    axes.legend(title="it fails", loc="upper center", bbox_to_anchor=(0.68, 1.05))
    axes.text(1.7, 3, "saves too often", color=GREY, fontsize=9)
    axes.text(330, 7.5, "repeats too much", color=GREY, fontsize=9)


if __name__ == "__main__":
    save("checkpoints", draw, height=2.8)
