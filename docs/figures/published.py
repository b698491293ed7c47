"""Planning: published runs beside what the planner predicts for them, without their source.

    python -m docs.figures.published

Drawn from tools/planning/published.csv; python -m tools.planning.published makes that.
"""

import numpy as np
import pandas as pd

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, save
from tools.planning.published import FOLDER
from tools.planning.speeds import COVERED, fitted

MARKS = {"A100": (BLUE, "o"), "H100": (ORANGE, "s"), "TPU": (GREEN, "^"), "RTX 4090": (GREY, "D")}


def draw(axes) -> None:
    low, high = fitted()["interval"]
    table = pd.read_csv(FOLDER / "published.csv").query("fits")
    ends = np.array([0.03, 60.0])
    axes.fill_between(ends, ends / high, ends / low, color=LIGHT, lw=0, label=f"{COVERED:.0%} interval")
    axes.plot(ends, ends, color=GREY, lw=1)
    for name, (color, mark) in MARKS.items():
        group = table[table["on"].map(family) == name]
        label = f"{name}, {len(group)} runs"
        axes.plot(group["published"], group["predicted"], mark, ms=5, color=color, alpha=0.8, label=label)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel="published, seconds a step", ylabel="predicted, seconds a step")
    axes.legend(loc="upper left", fontsize="small")


def family(on: str) -> str:
    """Return the row of MARKS that devices such as H100:8 belong to."""
    device = on.partition(":")[0]
    names = {"RTX4090": "RTX 4090", "H200": "H100"}
    return names.get(device, "TPU" if device.startswith("v") else device.partition("-")[0])


if __name__ == "__main__":
    save("published", draw, width=5.2, height=4.8)
