"""An experiment's table in Markdown and its plot: final validation losses with their spread over the seeds.

Two option sets are compared seed by seed: runs with the same seed see the same batches, in training and in
evaluation, so that much of the spread is common to both. The interval is Student's, of the mean difference.
"""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from config.files import write_whole
from experiments.record import LAST_COMMIT, Experiment, Record, Summary

SURE = 0.95  # the probability that an interval is to have


def write_report(experiment: Experiment, record: Record, folder: Path) -> None:
    """Write the table and, where there is anything to draw, the plot."""
    if not record.sets:
        print(f"{experiment.name}: no run has ended yet")
        return
    summaries = summarize(experiment, record)
    drawn = any(summary.losses or summary.diverged for summary in summaries.values())
    write_whole(folder / f"{experiment.name}.md", markdown(experiment, record, drawn), "make room there")
    if drawn:
        draw(experiment, record, folder / f"{experiment.name}.svg")
    print(f"the table: {folder / f'{experiment.name}.md'}")


def summarize(experiment: Experiment, record: Record) -> dict[str, Summary]:
    """Summarise the runs of each option set, by its label."""
    return {label: record.summary(label, experiment.options(label)) for label in experiment.sets}


# The table


def markdown(experiment: Experiment, record: Record, drawn: bool) -> str:
    summaries = summarize(experiment, record)
    base = next(iter(summaries.values()))
    other = "the row above" if experiment.upward else next(iter(summaries))
    rows = [
        f"| option set | val loss, mean ± sd | against {other}, 95% interval | seeds | ms/step | steps |",
        "|---|---|---|---|---|---|",
    ]
    for label, summary in summaries.items():
        options = experiment.options(label)
        ms = record.ms(label, options)
        against = "" if summary is base else describe_difference(difference(summary, base))
        if against and (pairs := len(summary.losses.keys() & base.losses.keys())) < len(summary.losses):
            against += f" ({pairs} pairs)"
        base = summary if experiment.upward else base
        timed = "" if ms is None else f"{ms:.1f}"
        seeds = f"{len(summary.losses) + summary.diverged}"
        steps = f"{options.get('max_iters', 600000):,}"
        shown = f"{label} ({experiment.removed[label]})" if label in experiment.removed else label
        rows.append(f"| {shown} | {describe(summary)} | {against} | {seeds} | {timed} | {steps} |")
    parts = [f"# {experiment.name}", experiment.question, "\n".join(rows)]
    if drawn:
        parts.append(f"![{experiment.question}]({experiment.name}.svg)")
    if experiment.findings and drawn:
        parts.append("\n".join(f"- {line}" for line in experiment.findings(experiment, record)))
    parts.append("\n".join([missing(experiment, summaries), *provenance(experiment, record)]))
    return "\n\n".join(parts) + "\n"


def describe(summary: Summary) -> str:
    """Return mean ± standard deviation of an option set's losses. No figure comes from one seed."""
    runs = len(summary.losses) + summary.diverged
    diverged = f"{summary.diverged} of {runs} diverged" if summary.diverged else ""
    if summary.spread is None:
        return diverged or ("not run" if not runs else "one seed: no figure")
    return f"{summary.mean:.4f} ± {summary.spread:.4f}" + (f" ({diverged})" if diverged else "")


def difference(ours: Summary, theirs: Summary) -> tuple[float, float] | None:
    """Return the mean of our losses less theirs, seed by seed, and half its 95% interval.

    None where fewer than two seeds have both.
    """
    pairs = [ours.losses[seed] - theirs.losses[seed] for seed in ours.losses.keys() & theirs.losses.keys()]
    return interval(pairs) if len(pairs) > 1 else None


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean of two values or more, and half its 95% interval, Student's, which is wide for few."""
    from scipy.stats import t  # here, because it takes long to import

    n = len(values)
    return fmean(values), float(t.ppf((1 + SURE) / 2, n - 1)) * stdev(values) / math.sqrt(n)


def seed_interval(losses: list[float]) -> float:
    """Return how far from the mean of some runs one more run of the same options ends, in 19 cases of 20."""
    return interval(losses)[1] * math.sqrt(len(losses) + 1)


def describe_difference(found: tuple[float, float] | None) -> str:
    """Return a difference with its interval, in bold where 0 is outside of it."""
    if found is None:
        return ""
    text = f"{found[0]:+.4f} ± {found[1]:.4f}"
    return f"**{text}**" if abs(found[0]) > found[1] else text


def missing(experiment: Experiment, summaries: dict[str, Summary]) -> str:
    """Say how many runs are not there yet."""
    wanted = [summary for label, summary in summaries.items() if label not in experiment.removed]
    due = experiment.seeds * len(wanted)
    done = sum(min(len(x.losses) + x.diverged, experiment.seeds) for x in wanted)
    if done == due:
        return f"Complete: {experiment.seeds} seeds of each."
    return f"{done} of {due} runs are done ({experiment.seeds} seeds of each); `--list` names the others."


def provenance(experiment: Experiment, record: Record) -> list[str]:
    """Say how and where the runs were made, and their steps timed."""
    sets = [(label, experiment.options(label)) for label in experiment.sets]
    runs = [run for label, options in sets for run in record.runs(label, options)]
    lines = []
    if runs:
        days, hours = sorted({run["date"] for run in runs}), sum(run["seconds"] for run in runs) / 3600
        dates = sorted({days[0], days[-1]})
        lines = [
            "",
            f"Made by `python -m experiments.{experiment.program}`: {len(runs)} runs of "
            f"`{experiment.config}`, {hours:.1f} hours by the clock ({' to '.join(dates)}).",
        ]
        lines += [
            f"On {cpu}: {seeds_on(cpu, experiment, record)}." for cpu in sorted({x["cpu"] for x in runs})
        ]
        lines += [f"Versions: {found}." for found in sorted({run["versions"] for run in runs})]
    if experiment.removed:
        lines.append(f"Rows with brackets need options that are gone. Commit {LAST_COMMIT} has them.")
    timed = {record.sets[label]["timed"] for label, options in sets if record.ms(label, options) is not None}
    return lines + [f"Steps timed {found}." for found in sorted(timed)]


def seeds_on(cpu: str, experiment: Experiment, record: Record) -> str:
    """Return which seeds a machine trained, and of which option sets."""
    sets: dict[str, list[str]] = {}
    for label in experiment.sets:
        runs = record.runs(label, experiment.options(label))
        if seeds := ", ".join(str(run["seed"]) for run in runs if run["cpu"] == cpu):
            sets.setdefault(seeds, []).append(label)
    named = []
    for seeds, found in sets.items():
        others = [label for label in experiment.sets if label not in found]
        but = f" but `{'`, `'.join(others)}`" if others else ""
        of = f"all{but}" if len(others) < len(found) else f"`{'`, `'.join(found)}`"
        named.append(f"seed {seeds} of {of}")
    return "; ".join(named)


# The plots


def draw(experiment: Experiment, record: Record, path: Path) -> None:
    """Draw an experiment into an SVG file."""

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_title(experiment.question, fontsize="medium", wrap=True)
        axes.grid(alpha=0.3)
        experiment.draw(axes, experiment, record)

    save_svg(path, experiment.name, fill)


def save_svg(path: Path, name: str, fill: Callable[[Any], None]) -> None:
    """Save the figure that `fill` draws into. The file is the same whenever the results are."""
    import matplotlib  # here, because it takes half a second and is needed at the end only
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        fill(figure := Figure(figsize=(8, 5), layout="constrained"))
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw_curves(axes: Any, experiment: Experiment, record: Record) -> None:
    """Draw each option set's validation loss over the steps: the mean, and a standard deviation around it."""
    for label in experiment.sets:
        runs = [run for run in record.runs(label, experiment.options(label)) if run["val"] is not None]
        if not runs:
            continue
        steps, mean, spread = band([run["evaluations"] for run in runs])
        (line,) = axes.plot(steps, mean, marker="o", ms=3, lw=1, label=f"{label} ({len(runs)} seeds)")
        low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, lw=0)
    axes.set(xlabel="step", ylabel="validation loss (nats per token)")
    axes.legend(fontsize="small")


def band(curves: list[list[list[float]]]) -> tuple[list[float], list[float], list[float]]:
    """Return the steps that all curves, (step, train loss, val loss), have: val's mean, deviation there."""
    by_step = [{step: val for step, _, val in curve} for curve in curves]
    steps = sorted(set.intersection(*map(set, by_step)))
    values = [[curve[step] for curve in by_step] for step in steps]
    return steps, [fmean(found) for found in values], [stdev(v) if len(v) > 1 else 0.0 for v in values]


def draw_dots(axes: Any, experiment: Experiment, record: Record) -> None:
    """Draw a row for each option set: a dot for each seed, and a bar at their mean."""
    summaries = summarize(experiment, record)
    for row, summary in enumerate(summaries.values()):
        losses = list(summary.losses.values())
        axes.plot(losses, [row] * len(losses), "o", ms=4, alpha=0.6)
        if len(losses) > 1:
            axes.plot([summary.mean] * 2, [row - 0.35, row + 0.35], color="black", lw=1.5)
        if summary.diverged:
            axes.annotate(f"{summary.diverged} diverged", (1.0, row), ("axes fraction", "data"), ha="right")
    if (base := next(iter(summaries.values()))).losses:
        axes.axvline(base.mean, color="gray", lw=0.8, ls="--")
    axes.set_yticks(range(len(summaries)), list(summaries))
    axes.invert_yaxis()
    axes.set(xlabel="final validation loss (nats per token): a dot for each seed, bars at the means")


def draw_lines(
    axes: Any, experiment: Experiment, record: Record, x: str, lines: dict[str, list[str]]
) -> None:
    """Draw the final loss against option `x`, which has a logarithmic axis, as lines of option sets.

    `lines` has the sets of each line, in order. Bars are one standard deviation; a cross below the top marks
    sets of which a run diverged.
    """
    for name, labels in lines.items():
        sets = [(label, experiment.options(label)) for label in labels]
        points = [(options[x], record.summary(label, options)) for label, options in sets]
        ended = [(value, summary) for value, summary in points if summary.losses]
        if ended:
            values, found = zip(*ended, strict=True)
            spreads = [summary.spread or 0.0 for summary in found]
            means = [summary.mean for summary in found]
            axes.errorbar(values, means, spreads, marker="o", ms=4, lw=1, capsize=3, label=name)
        else:
            axes.plot([], [], label=name)
        color = axes.get_lines()[-1].get_color()
        for value, summary in points:
            if summary.diverged:
                axes.plot([value], [0.97], "x", color=color, transform=axes.get_xaxis_transform())
    axes.set_xscale("log")
    axes.set(xlabel=x, ylabel="final validation loss (nats per token)")
    axes.legend(fontsize="small")


def best_of_each(experiment: Experiment, record: Record, lines: dict[str, list[str]]) -> list[str]:
    """Name the option set with the lowest mean loss of each line of them, and those within noise of it.

    Sets with fewer than two seeds, or of which a run diverged, are left out. Within noise is a set whose
    difference to the lowest, seed by seed, has an interval that reaches 0.
    """
    found = []
    for name, labels in lines.items():
        summaries = {label: record.summary(label, experiment.options(label)) for label in labels}
        able = {label: x for label, x in summaries.items() if len(x.losses) > 1 and not x.diverged}
        if not able:
            continue
        lowest = min(able, key=lambda label: able[label].mean)
        edge = " (the edge of what was tried)" if lowest in (labels[0], labels[-1]) else ""
        mean, half = interval(list(able[lowest].losses.values()))
        gaps = {label: difference(able[label], able[lowest]) for label in able if label != lowest}
        near = [label for label, gap in gaps.items() if gap is None or gap[0] <= gap[1]]
        first, *others = (label.removeprefix(name).lstrip(", ") for label in (lowest, *near))
        noise = f"; within noise of it: {'; '.join(others)}" if others else ""
        found.append(f"Lowest mean of {name}: {first}{edge}, {mean:.4f} ± {half:.4f} (95%){noise}.")
    return found
