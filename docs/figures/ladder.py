"""Chapter 8: what each change to nanoGPT's recipe does to the loss, alone and on top of the others."""

import tomllib

from docs.figures import BLUE, GREEN, GREY, ORANGE, ROOT, save
from experiments.record import RESULTS, Record
from experiments.statistics import Difference, difference

TEXTS = {"shakespeare": BLUE, "book": GREEN}
ALONE = {text: f"ladder_{text}" for text in TEXTS}
UP = {text: f"ladder_{text}_up" for text in TEXTS}
UP_IN_TIME = {text: f"ladder_{text}_up_equal_time" for text in TEXTS}


def sets(name: str) -> list[str]:
    """Return the labels of an experiment's sets, the base first."""
    lists = tomllib.loads((ROOT / "experiments" / "ladder.toml").read_text())
    return [*lists[name.removesuffix("_equal_time")]["sets"]]


def differences(name: str) -> dict[str, Difference]:
    """Return how each set differs from the base, or on the ladder from the set above."""
    (base, *labels), record = sets(name), Record(RESULTS / f"{name}.json")
    others = [base, *labels] if "_up" in name else [base] * len(labels)
    pairs = zip(labels, others, strict=False)
    return {label: difference(record.losses(label), record.losses(other)) for label, other in pairs}


def say(found: Difference) -> str:
    """Return a difference and its interval, in brackets if that contains 0."""
    text = f"{found.mean:+.4f} ± {found.half:.4f}"
    return text if abs(found.mean) > found.half else f"({text})"


def findings(names: dict[str, str]) -> str:
    """Say what the experiments found, a column for each text."""
    columns = [differences(name) for name in names.values()]
    rows = [" " * 10 + "".join(f"{text:>21}" for text in names)]
    for label in columns[0]:
        rows.append(f"{label:10}" + "".join(f"{say(found[label]):>21}" for found in columns))
    return "\n".join(rows)


def draw_alone(axes) -> None:
    """Draw each change's mean difference from the first set, with its 95% interval, the best on top."""
    order: list[str] = []
    for i, (text, name) in enumerate(ALONE.items()):
        found, color = differences(name), TEXTS[text]
        order = order or sorted(found, key=lambda label: -found[label].mean)
        for label, x in found.items():
            y = order.index(label) + 0.15 - 0.3 * i
            axes.plot([x.mean - x.half, x.mean + x.half], [y, y], color=color, lw=1.2)
            axes.plot(x.mean, y, "o", ms=5, color=color, mfc=color if abs(x.mean) > x.half else "white")
        axes.plot([], [], "o", ms=5, color=color, label=text)
    axes.plot([], [], "o", ms=5, color=GREY, mfc="white", label="its interval contains 0")
    axes.axvline(0, color=ORANGE, lw=1)
    axes.set_yticks(range(len(order)), order)
    axes.set(xlabel="val loss, less nanoGPT's (nats)", xticks=[-0.3, -0.2, -0.1, 0])
    axes.legend(loc="lower left", fontsize="small")
    axes.set_title("each change alone")


def draw_up(axes) -> None:
    """Draw the ladder's means on both texts, in equal steps and in equal time."""
    for names, style, equal in ((UP, "o-", "steps"), (UP_IN_TIME, "o:", "time")):
        for text, color in TEXTS.items():
            labels, record = sets(names[text]), Record(RESULTS / f"{names[text]}.json")
            means, label = [record.losses(x).mean() for x in labels], f"{text}, equal {equal}"
            axes.plot(means, range(len(labels)), style, ms=4, lw=1.2, color=color, label=label)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="val loss (nats)")
    axes.legend(loc="lower right", fontsize="small")
    axes.set_title("each on top of those above it")


def draw(axes) -> None:
    draw_alone(axes[0])
    draw_up(axes[1])
    for names in (ALONE, UP, UP_IN_TIME):
        print(findings(names))


if __name__ == "__main__":
    save("ladder", draw, width=8.8, height=4.2, ncols=2)
