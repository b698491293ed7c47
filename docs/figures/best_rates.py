"""Chapter 8: the loss by learning rate of three optimizers, each at its own three rates."""

from docs.figures import BLUE, GREEN, GREY, save
from docs.figures.widths import draw_rates
from experiments.record import RESULTS, Record

RATES = (2e-3, 4e-3, 8e-3, 16e-3)  # AdamW has the first three, the others the last three
LINES = {name: (f"{name} ", color) for name, color in (("adamw", GREY), ("muon", BLUE), ("normuon", GREEN))}


def draw(axes) -> None:
    draw_rates(axes, Record(RESULTS / "optimizers.json"), RATES, LINES, loc="upper right")


if __name__ == "__main__":
    save("best_rates", draw, height=3.4)
