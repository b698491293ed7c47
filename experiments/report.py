"""An experiment's table in Markdown and its plot: final validation losses and their spread over the seeds.

Two option sets are compared seed by seed: runs of the same seed see the same batches, so that much of the
spread is common to both. Intervals are Student's.
"""

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import pandas as pd

from config.files import write_whole
from config.options import Options
from experiments.record import LAST_COMMIT, Experiment, Record

SURE = 0.95  # the probability of an interval


def write_report(record: Record) -> None:
    """Write the table and, once a run has ended, the plot."""
    if not record.sets:
        print(f"{record.experiment.name}: no run has ended yet")
        return
    path = record.path.with_suffix(".md")
    write_whole(path, markdown(record), "make room there")
    if any(map(record.runs, record.experiment.sets)):
        save_svg(record.path.with_suffix(".svg"), record.experiment.name, partial(draw, record))
    print(f"the table: {path}")


# The table


def markdown(record: Record) -> str:
    experiment = record.experiment
    base = next(iter(experiment.sets))
    other = "the row above" if experiment.upward else base
    rows = [
        f"| option set | val loss, mean ± sd | against {other}, 95% interval | seeds | ms/step | steps |",
        "|---|---|---|---|---|---|",
    ]
    for label, options in record.options.items():
        losses, ms = record.losses(label), record.entry(label).get("ms")
        against = "" if label == base else describe_difference(losses, record.losses(base))
        base = label if experiment.upward else base
        timed = "" if ms is None else f"{ms:.1f}"
        steps = options.get("max_iters", Options.max_iters)
        shown = f"{label} ({experiment.removed[label]})" if label in experiment.removed else label
        rows.append(f"| {shown} | {describe(losses)} | {against} | {len(losses)} | {timed} | {steps:,} |")
    parts = [f"# {experiment.name}", experiment.question, "\n".join(rows)]
    if any(map(record.runs, experiment.sets)):
        parts.append(f"![{experiment.question}]({experiment.name}.svg)")
        if experiment.findings:
            parts.append("\n".join(f"- {line}" for line in experiment.findings(record)))
    parts.append("\n".join([missing(record), *provenance(record)]))
    return "\n\n".join(parts) + "\n"


def describe(losses: pd.Series) -> str:
    """Return mean ± standard deviation of an option set's losses. No figure comes from one seed."""
    ended = losses.dropna()
    diverged = f"{len(losses) - len(ended)} of {len(losses)} diverged" if len(ended) < len(losses) else ""
    if len(ended) < 2:
        return diverged or ("not run" if losses.empty else "one seed: no figure")
    return f"{fmean(ended):.4f} ± {ended.std():.4f}" + (f" ({diverged})" if diverged else "")


def describe_difference(ours: pd.Series, theirs: pd.Series) -> str:
    """Return a difference with its interval, in bold where 0 is outside of it."""
    found, pairs = difference(ours, theirs), (ours - theirs).count()
    if found is None:
        return ""
    text = "{:+.4f} ± {:.4f}".format(*found)
    text = f"**{text}**" if abs(found[0]) > found[1] else text
    return f"{text} ({pairs} pairs)" if pairs < ours.count() else text


def difference(ours: pd.Series, theirs: pd.Series) -> tuple[float, float] | None:
    """Return the mean of our losses less theirs, seed by seed, and half its 95% interval.

    None where fewer than two seeds have both.
    """
    pairs = (ours - theirs).dropna()
    return interval(pairs) if len(pairs) > 1 else None


def interval(values: pd.Series) -> tuple[float, float]:
    """Return the mean of two values or more, and half its 95% interval."""
    from scipy.stats import t  # here, because it takes long to import

    return values.mean(), float(t.ppf((1 + SURE) / 2, len(values) - 1)) * values.sem()


def seed_interval(losses: pd.Series) -> float:
    """Return how far from the mean of some runs one more run of the same options ends, in 19 cases of 20."""
    return interval(losses)[1] * math.sqrt(len(losses) + 1)


def best_of_each(record: Record, lines: dict[str, list[str]]) -> list[str]:
    """Name the option set with the lowest mean loss of each line of them, and those within noise of it.

    Sets with fewer than two seeds, or of which a run diverged, are left out. Within noise is a set whose
    difference to the lowest, seed by seed, has an interval that reaches 0.
    """
    found = []
    for name, labels in lines.items():
        losses = {label: record.losses(label) for label in labels}
        able = {label: x for label, x in losses.items() if len(x) > 1 and x.notna().all()}
        if not able:
            continue
        lowest = min(able, key=lambda label: able[label].mean())
        edge = " (the edge of what was tried)" if lowest in (labels[0], labels[-1]) else ""
        gaps = {label: difference(able[label], able[lowest]) for label in able if label != lowest}
        near = [label for label, gap in gaps.items() if gap is None or gap[0] <= gap[1]]
        first, *others = (label.removeprefix(name).lstrip(", ") for label in (lowest, *near))
        noise = f"; within noise of it: {'; '.join(others)}" if others else ""
        mean = "{:.4f} ± {:.4f} (95%)".format(*interval(able[lowest]))
        found.append(f"Lowest mean of {name}: {first}{edge}, {mean}{noise}.")
    return found


def missing(record: Record) -> str:
    """Say how many runs are not there yet."""
    seeds, wanted = record.experiment.seeds, record.experiment.sets.keys() - record.experiment.removed.keys()
    done, due = sum(min(len(record.runs(label)), seeds) for label in wanted), seeds * len(wanted)
    if done == due:
        return f"Complete: {seeds} seeds of each."
    return f"{done} of {due} runs are done ({seeds} seeds of each); `--list` names the others."


def provenance(record: Record) -> list[str]:
    """Say how and where the runs were made, and their steps timed."""
    experiment, lines = record.experiment, []
    runs = pd.DataFrame([{"set": label, **run} for label in experiment.sets for run in record.runs(label)])
    if len(runs):
        days, hours = sorted({runs["date"].min(), runs["date"].max()}), runs["seconds"].sum() / 3600
        lines = [
            "",
            f"Made by `python -m experiments.{experiment.program}`: {len(runs)} runs of "
            f"`{experiment.config}`, {hours:.1f} hours by the clock ({' to '.join(days)}).",
        ]
        lines += [f"On {cpu}: {seeds_of_each(own, experiment)}." for cpu, own in runs.groupby("cpu")]
        lines += [f"Versions: {found}." for found in sorted(set(runs["versions"]))]
    if experiment.removed:
        lines.append(f"Rows with brackets need options that are gone. Commit {LAST_COMMIT} has them.")
    entries = map(record.entry, experiment.sets)
    timed = {entry["timed"] for entry in entries if "timed" in entry}
    return lines + [f"Steps timed {found}." for found in sorted(timed)]


def seeds_of_each(runs: pd.DataFrame, experiment: Experiment) -> str:
    """Name the seeds of these runs, and of which option sets they are."""
    sets: dict[str, list[str]] = {}
    for label, seeds in runs.groupby("set", sort=False)["seed"]:
        sets.setdefault(", ".join(map(str, seeds)), []).append(str(label))
    named = []
    for seeds, found in sets.items():
        others = [label for label in experiment.sets if label not in found]
        but = f" but `{'`, `'.join(others)}`" if others else ""
        of = f"all{but}" if len(others) < len(found) else f"`{'`, `'.join(found)}`"
        named.append(f"seed {seeds} of {of}")
    return "; ".join(named)


# The plots


def save_svg(path: Any, name: str, fill: Callable[[Any], None]) -> None:
    """Save the figure that `fill` draws into. The file is the same whenever the results are."""
    import matplotlib  # here, because it takes half a second and is needed at the end only
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        fill(figure := Figure(figsize=(8, 5), layout="constrained"))
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw(record: Record, figure: Any) -> None:
    axes = figure.subplots()
    axes.set_title(record.experiment.question, fontsize="medium", wrap=True)
    axes.grid(alpha=0.3)
    record.experiment.draw(axes, record)


def draw_means(axes: Any, name: str, values: pd.DataFrame, band: bool = False) -> None:
    """Draw a line through the mean of each row, over the rows' index, with one standard deviation around."""
    mean, spread = values.mean(axis=1), values.std(axis=1).fillna(0)
    if band:
        (line,) = axes.plot(mean.index, mean, marker="o", ms=3, lw=1, label=name)
        axes.fill_between(mean.index, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, lw=0)
    else:
        axes.errorbar(mean.index, mean, spread, marker="o", ms=4, lw=1, capsize=3, label=name)


def draw_curves(axes: Any, record: Record) -> None:
    """Draw the validation loss of each option set over the steps at which all of its runs have one."""
    for label in record.experiment.sets:
        runs = [run for run in record.runs(label) if run["val"] is not None]
        if runs:
            curves = {run["seed"]: {step: val for step, _, val in run["evaluations"]} for run in runs}
            values = pd.DataFrame(curves).sort_index().dropna()
            draw_means(axes, f"{label} ({len(runs)} seeds)", values, band=True)
    axes.set(xlabel="step", ylabel="validation loss (nats per token)")
    axes.legend(fontsize="small")


def draw_dots(axes: Any, record: Record) -> None:
    """Draw a row for each option set: a dot for each seed, and a bar at their mean."""
    sets = {label: record.losses(label) for label in record.experiment.sets}
    for row, losses in enumerate(sets.values()):
        ended = losses.dropna()
        axes.plot(ended, [row] * len(ended), "o", ms=4, alpha=0.6)
        if len(ended) > 1:
            axes.plot([ended.mean()] * 2, [row - 0.35, row + 0.35], color="black", lw=1.5)
        if diverged := len(losses) - len(ended):
            axes.annotate(f"{diverged} diverged", (1.0, row), ("axes fraction", "data"), ha="right")
    if (base := next(iter(sets.values()))).count():
        axes.axvline(base.mean(), color="gray", lw=0.8, ls="--")
    axes.set_yticks(range(len(sets)), list(sets))
    axes.invert_yaxis()
    axes.set(xlabel="final validation loss (nats per token): a dot for each seed, bars at the means")


def draw_lines(axes: Any, record: Record, x: str, lines: dict[str, list[str]]) -> None:
    """Draw the final loss against option `x`, which has a logarithmic axis, as lines of option sets.

    `lines` has the sets of each line, in order. A cross below the top marks sets of which a run diverged.
    """
    for name, labels in lines.items():
        losses = {record.options[label][x]: record.losses(label) for label in labels}
        values = pd.DataFrame({at: found for at, found in losses.items() if found.count()}).T
        draw_means(axes, name, values)
        color = axes.get_lines()[-1].get_color()
        for at in (at for at, found in losses.items() if found.hasnans):
            axes.plot([at], [0.97], "x", color=color, transform=axes.get_xaxis_transform())
    axes.set_xscale("log")
    axes.set(xlabel=x, ylabel="final validation loss (nats per token)")
    axes.legend(fontsize="small")
