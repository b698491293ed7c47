"""The figures of the pages: each file here draws one, into docs/images/<its name>.svg.

    python -m docs.figures.<name>       one of them
    python -m docs.figures              all of them

The same program on the same data writes the same bytes: no date, no random name stands in the file.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from common.errors import UserError

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
    if not (folder / "checkpoints").is_dir():
        command = [sys.executable, "train.py", "config/quickstart.py"]
        subprocess.run(command, cwd=ROOT, check=True)
    return folder
