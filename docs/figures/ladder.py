"""Chapter 8: what each change to nanoGPT's recipe does to the loss, alone and on top of the others.

    python -m docs.figures.ladder

Drawn from experiments/results/; python -m experiments.compare experiments/ladder.toml trains what is missing
there.
"""

from docs.figures import BLUE, GREEN, GREY, ORANGE, save
from experiments.record import RESULTS, Record
from experiments.statistics import difference

TEXTS = {"shakespeare": BLUE, "python": GREEN}


def draw_alone(axes) -> None:
    """Draw each change's mean difference from the first set, with its 95% interval, the best on top."""
    order: list[str] = []
    for i, (text, color) in enumerate(TEXTS.items()):
        record = Record(RESULTS / f"ladder_{text}.json")
        base, *labels = record.sets
        found = {label: difference(record.losses(label), record.losses(base)) for label in labels}
        order = order or sorted(found, key=lambda label: -found[label].mean)
        for row, label in enumerate(order):
            mean, half, y = found[label].mean, found[label].half, row + 0.15 - 0.3 * i
            sure = abs(mean) > half
            axes.plot([mean - half, mean + half], [y, y], color=color, lw=1.2)
            axes.plot(mean, y, "o", ms=5, color=color, mfc=color if sure else "white")
            print(f"{text:12} {label:18} {mean:+.4f} ± {half:.4f}")
        axes.plot([], [], "o", ms=5, color=color, label=text)
    axes.plot([], [], "o", ms=5, color=GREY, mfc="white", label="not sure")
    axes.axvline(0, color=ORANGE, lw=1)
    axes.set_yticks(range(len(order)), order)
    axes.set(xlabel="val loss, less nanoGPT's (nats)", xlim=(-0.4, 0.06))
    axes.legend(loc="lower left", fontsize="small")
    axes.set_title("each change alone")


def draw_up(axes) -> None:
    """Draw the ladder's means, on both texts, and on Shakespeare in equal time."""
    for name, file, color, style in (
        ("shakespeare", "ladder_shakespeare_up", BLUE, "o-"),
        ("shakespeare, equal time", "ladder_shakespeare_up_equal_time", BLUE, "o:"),
        ("python", "ladder_python_up", GREEN, "o-"),
    ):
        record = Record(RESULTS / f"{file}.json")
        means = [record.losses(label).dropna().mean() for label in record.sets]
        axes.plot(means, range(len(means)), style, ms=4, lw=1.2, color=color, label=name)
        print(name, [round(float(mean), 3) for mean in means])
    axes.set_yticks(range(len(record.sets)), list(record.sets))
    axes.invert_yaxis()
    axes.set(xlabel="val loss (nats)", xlim=(1.3, 2.7))
    axes.legend(loc="center right", fontsize="small")
    axes.set_title("each on top of those above it")


def draw(axes) -> None:
    draw_alone(axes[0])
    draw_up(axes[1])


if __name__ == "__main__":
    save("ladder", draw, width=8.8, height=5.0, ncols=2)
