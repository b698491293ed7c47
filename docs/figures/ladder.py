"""Chapter 8: what each change to nanoGPT's recipe does to the loss, alone and on top of the others.

    python -m docs.figures.ladder

Drawn from experiments/results/; python -m experiments.ladder trains what is missing there.
"""

from docs.figures import BLUE, GREY, ORANGE, save
from experiments.ladder import EXPERIMENTS
from experiments.record import Record
from experiments.report import difference

ALONE, UP = (next(x for x in EXPERIMENTS if x.name == f"ladder_shakespeare{end}") for end in ("", "_up"))


def draw_alone(axes, record: Record) -> None:
    """Draw each change's mean difference from the first set, with its 95% interval, the best on top."""
    base, *labels = record.experiment.sets
    found = {label: difference(record.losses(label), record.losses(base)) for label in labels}
    known = sorted(((*pair, label) for label, pair in found.items()), reverse=True)
    for row, (mean, half, label) in enumerate(known):
        sure = abs(mean) > half
        axes.plot([mean - half, mean + half], [row, row], color=BLUE if sure else GREY, lw=1.2)
        axes.plot(mean, row, "o", ms=5, color=BLUE if sure else GREY)
        print(f"{label:18} {mean:+.4f} ± {half:.4f}")
    axes.axvline(0, color=ORANGE, lw=1)
    axes.set_yticks(range(len(known)), [label for *_, label in known])
    axes.set(xlabel="val loss, next to nanoGPT's (nats)", xlim=(-0.35, 0.1))
    axes.set_title("each change alone")


def draw_up(axes, record: Record) -> None:
    """Draw the ladder: a dot for each seed, and a line through the means."""
    losses = {label: record.losses(label).dropna() for label in record.experiment.sets}
    known = {label: found for label, found in losses.items() if len(found)}
    for row, found in enumerate(known.values()):
        axes.plot(found, [row] * len(found), "o", ms=4, color=GREY, alpha=0.5)
    means = [found.mean() for found in known.values()]
    axes.plot(means, range(len(known)), "o-", ms=5, lw=1.2, color=BLUE)
    for row, mean in enumerate(means):
        axes.annotate(f"{mean:.3f}", (mean, row), (6, -10), textcoords="offset points", fontsize=8)
    axes.margins(x=0.2)  # room for the last label
    axes.set_yticks(range(len(known)), list(known))
    axes.invert_yaxis()
    axes.set(xlabel="val loss (nats)")
    axes.set_title("each on top of those above it")


def draw(axes) -> None:
    for one, plot, experiment in zip(axes, (draw_alone, draw_up), (ALONE, UP), strict=True):
        plot(one, Record(experiment))


if __name__ == "__main__":
    save("ladder", draw, width=8.4, height=4.2, ncols=2)
