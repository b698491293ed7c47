"""The figures of the pages, and what they share: colors, saving, boxes, arrows, ticks.

    python -m docs.figures.<name>       draws docs/images/<name>.svg, and prints the numbers behind it

A figure of experiments is drawn from experiments/results/; `python -m experiments.compare` with the file that
its caption names trains what is missing there. The same program on the same data writes the same bytes: no
date, no random name stands in the file.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from common.errors import UserError
from data.dataset import Dataset, prepare_if_missing

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"

# Blue to read by, orange for what the eye should find, grey for the rest: they differ in lightness too.
BLUE, ORANGE, GREEN, GREY, LIGHT = "#2458a6", "#d9730d", "#2a8a57", "#6b7280", "#d5dae1"

STYLE: Any = {
    "svg.hashsalt": "docs",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",  # a page may be dark
}


def save(name: str, draw: Callable[..., None], width: float = 7.2, height: float = 3.2, **layout) -> None:
    """Draw a figure into docs/images/<name>.svg: `draw` takes its axes (one, or as `layout` has them)."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(**layout)
        try:
            draw(axes)
        except UserError as error:
            sys.exit(f"error: {error}")
        path = IMAGES / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
    print(f"docs/images/{path.name}")


def quickstart() -> Path:
    """Return the folder of the quickstart's run, `out-quickstart`; trained first if it is not there."""
    folder = ROOT / "out-quickstart"
    command = [sys.executable, "train.py", "config/quickstart.py", "--init_from=auto"]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


def book(split: str) -> np.ndarray:
    """Return the tokens of a split of the quickstart's text; prepared first if it is not there."""
    prepare_if_missing("book_char")
    return np.asarray(Dataset("book_char").tokens(split).ids, np.int64)


def ticks(axis, values, labels=None) -> None:
    """Have ticks at these values alone, of a logarithmic axis too."""
    axis.set_ticks(values, labels or [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def legend(axes, colors: dict[str, str], **place) -> None:
    """Put a legend of these colors there."""
    axes.legend(handles=[Patch(color=color, label=name) for name, color in colors.items()], **place)


def canvas(axes, width: float, height: float, title: str = "") -> None:
    """Make axes a sheet to draw on, of that size, without lines and ticks."""
    axes.set(xlim=(0, width), ylim=(0, height), xticks=[], yticks=[])
    axes.set_title(title)
    axes.spines[:].set_visible(False)


def write(axes, x: float, y: float, text: str, color: str = "black", align: str = "center", **style) -> None:
    """Write a text whose middle, or left or right end, is at x, y."""
    axes.text(x, y, text, color=color, **{"ha": align, "va": "center", "fontsize": 9} | style)


def tile(axes, x: float, y: float, width: float, height: float, color: str, **style) -> None:
    """Fill a rectangle whose lower left corner is at x, y."""
    style.setdefault("ec", "none")
    axes.add_patch(Rectangle((x, y), width, height, fc=color, **style))


def box(axes, x: float, y: float, text: str, color: str, width: float = 3.0, height: float = 0.8) -> None:
    """Draw a round box with a text in it around x, y."""
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.15"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, fc=color, ec="none", alpha=0.18))
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, fc="none", ec=color, lw=1.2))
    write(axes, x, y, text)


def arrow(axes, start, end, text: str = "", color: str = GREY, width: float = 1.4) -> None:
    """Draw an arrow from one point to another, with a text to the right of its middle."""
    style = {"arrowstyle": "-|>", "color": color, "lw": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    write(axes, x + 0.15, y, text, color, "left", fontsize=8.5)
