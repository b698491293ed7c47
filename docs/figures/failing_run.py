"""Chapter 7: the curves of its two runs, of which one fails quietly. Its commands train both."""

from common.errors import UserError
from docs.figures import BLUE, ORANGE, ROOT, legend, save
from runs.metrics import read_records

RUNS = {"out-one": BLUE, "out-high": ORANGE}


def draw(axes) -> None:
    for panel, name in zip(axes, ("loss", "grad_norm"), strict=True):
        for run, color in RUNS.items():
            steps = [x for x in read_records(ROOT / run / "metrics.jsonl") if name in x]
            if not steps:
                raise UserError(
                    f"{run}/metrics.jsonl: nothing is there: train it, as chapter 7's last section does"
                )
            panel.plot([x["iter"] for x in steps], [x[name] for x in steps], color=color)
        panel.set(title=name, xlabel="iteration")
    axes[1].axhline(1.0, color="black", lw=0.8, ls=":")
    axes[1].text(200, 1.02, "clipped above", ha="right", va="bottom", fontsize=8.5)
    legend(axes[0], {"rate 0.002": BLUE, "rate 0.1": ORANGE})


if __name__ == "__main__":
    save("failing_run", draw, height=2.6, ncols=2)
