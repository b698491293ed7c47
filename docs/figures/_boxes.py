"""Boxes and arrows, for the figures that draw a model's parts."""

from matplotlib.patches import FancyBboxPatch

from docs.figures import GREY


def canvas(axes, width: float, height: float, title: str = "") -> None:
    axes.set(xlim=(0, width), ylim=(0, height), xticks=[], yticks=[])
    axes.set_title(title)
    for side in axes.spines.values():
        side.set_visible(False)


def box(axes, x: float, y: float, text: str, color: str, width: float = 3.0, height: float = 0.8) -> None:
    """A box around the point x, y."""
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.15"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, fc=color, ec="none", alpha=0.18))
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, fc="none", ec=color, lw=1.2))
    axes.text(x, y, text, ha="center", va="center", fontsize=9)


def arrow(axes, start, end, text: str = "", color: str = GREY, aside: float = 0.15, bend: float = 0) -> None:
    """An arrow from one point to another, with a text to the right of its middle."""
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
    if bend:
        style["connectionstyle"] = f"arc3,rad={bend}"
    axes.annotate("", end, start, arrowprops=style)
    if text:
        x, y = (start[0] + end[0]) / 2 + aside, (start[1] + end[1]) / 2
        axes.text(x, y, text, color=color, fontsize=8.5, va="center")
