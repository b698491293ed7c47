"""Chapter 7: the loss at high learning rates, and what three remedies do to it."""

from docs.figures import BLUE, GREEN, GREY, save
from docs.figures.widths import draw_rates
from experiments.record import RESULTS, Record

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
COLORS = {"without": GREY, "qk_norm": BLUE, "softcap": "#b9a3d9", "z-loss": GREEN, "all three": "#111827"}


def draw(axes) -> None:
    lines = {name: (f"{name}, ", color) for name, color in COLORS.items()}
    draw_rates(axes, Record(RESULTS / "stability.json"), RATES, lines, loc="upper left", fontsize="small")


if __name__ == "__main__":
    save("stability", draw)
