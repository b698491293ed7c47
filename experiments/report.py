"""An experiment's table in Markdown, and its picture: how far each set lies from the base, seed by seed."""

import math
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.files import write_whole
from experiments.record import Experiment, Record
from experiments.statistics import ALPHA, CHANCE, MOST, Difference, difference, seeds_to_show, smallest_gain

UNIT = {"val": "nats per token", "loss": "nats per token", "bits_per_byte": "bits per byte"}


def against(record: Record, label: str, alpha: float = ALPHA) -> Difference:
    """Compare a set with the first, or with the one above it."""
    labels, experiment = list(record.sets), record.experiment
    base = labels[max(labels.index(label) - 1, 0) if experiment.upward else 0]
    return difference(record.losses(label), record.losses(base), experiment.planned, alpha)


def base_of(record: Record) -> str:
    return "the row above" if record.experiment.upward else next(iter(record.sets))


def write_report(experiment: Experiment) -> None:
    record, name = experiment.record(), experiment.path.stem
    if not any(entry.runs for entry in record.sets.values()):
        return
    picture, page = experiment.path.with_suffix(".svg"), experiment.path.with_suffix(".md")
    parts = [f"# {name}", experiment.question, table(record)]
    if len(record.sets) > 1:
        save_svg(picture, lambda axes: draw(axes, record), height=1.6 + 0.4 * (len(record.sets) - 1))
        parts.append(f"![{name}]({picture.name})")
    if experiment.planned is not None:
        parts += sentences(record)
    parts.append(provenance(record))
    write_whole(page, "\n\n".join(parts) + "\n")
    print(f"written: {page}", file=sys.stderr)


def table(record: Record) -> str:
    unit = UNIT[record.experiment.metric]
    head = f"loss ({unit}), mean ± sd | difference from {base_of(record)}, 95% interval"
    rows = [f"| set | {head} | p | seeds | ms/step | steps |", "|---" * 7 + "|"]
    for label, entry in record.sets.items():
        losses, steps = record.losses(label), entry.option("max_iters")
        shown = f"{label} (tried, and taken out)" if label in record.taken_out else label
        pair = describe_difference(against(record, label), len(losses))
        ms = f"{entry.ms:.1f}" if entry.ms else ""
        rows.append(f"| {shown} | {describe(losses)} | {pair} | {len(losses)} | {ms} | {steps:,} |")
    return "\n".join(rows)


def describe(losses: pd.Series) -> str:
    """Return mean ± standard deviation. No figure comes from one seed."""
    ended = losses.dropna()
    diverged = f"{len(losses) - len(ended)} of {len(losses)} diverged" if len(ended) < len(losses) else ""
    if len(ended) < 2:
        return diverged or ("not run" if losses.empty else "one seed: no figure")
    return f"{ended.mean():.4f} ± {ended.std():.4f}" + (f" ({diverged})" if diverged else "")


def describe_difference(found: Difference, seeds: int) -> str:
    """Return a difference with its interval, bold where 0 is outside of it, and p."""
    if len(found.pairs) < 2 or not any(found.pairs):
        return " | "
    text = f"{found.mean:+.4f} ± {found.half:.4f}"
    text = f"**{text}**" if abs(found.mean) > found.half else text
    pairs = f" ({len(found.pairs)} pairs)" if len(found.pairs) < seeds else ""
    return f"{text}{pairs} | {found.p:.2g}"


def sentences(record: Record) -> list[str]:
    """Say in words whether each change helps."""
    labels = list(record.experiment.sets)[1:]
    lines = [sentence(record, label) for label in labels]
    if (k := len(labels)) > 1:
        found = {label: against(record, label, ALPHA / k).verdict for label in labels}
        sure = [f"{label} {verdict}" for label, verdict in found.items() if verdict in ("helps", "hurts")]
        luck = f"Luck alone moves one of {k} such intervals off 0 in {1 - (1 - ALPHA) ** k:.0%}"
        together = f"By intervals that hold together in 95%: {', '.join(sure) or 'none'}."
        lines.append(f"{luck} of comparisons. {together}")
    return lines


def sentence(record: Record, label: str) -> str:
    experiment, found = record.experiment, against(record, label)
    base = next(iter(experiment.sets))
    n, size = len(found.pairs), f"{abs(found.mean):.4f} ± {found.half:.4f} {UNIT[experiment.metric]}"
    entry = record.sets[label]
    ratio = (entry.ms or np.nan) / (record.sets[base].ms or np.nan)
    half = "" if entry.ratio_half is None else f" ± {entry.ratio_half:.2f}"
    ending = f"at equal {experiment.equal}; a step takes {ratio:.2f}{half} times as long."
    ending += experiment.sets[label].unlike(experiment.sets[base])
    if found.looked:
        ending += " Another number of seeds was planned: this interval is wider, and holds at every look."
    if found.verdict == "diverged":
        theirs, ours = found.diverged
        return f"{label}: no gain, {ours} of its runs and {theirs} of {base} diverged, {ending}"
    if found.verdict != "none":
        p = f" (p = {found.p:.2g})" if n >= 6 else ""  # of fewer seeds, it is above 0.05 whatever they find
        return f"{label} {found.verdict} by {size}{p}, {ending}"
    if n and not any(found.pairs):
        return f"{label}: nothing changes, each seed ends with the same loss, {ending}"
    if not np.isfinite(found.half):
        return f"{label}: too few pairs of seeds ({n}) for an interval, {ending}"
    least = smallest_gain(n, found.spread, n - 1, found.looked)
    seconds = sum(run.seconds for x in (label, base) for run in record.sets[x].runs) / n
    more = say_seeds(float(f"{least / 2:.1g}"), found.spread, n - 1, n, seconds)
    ending = f"{ending} {n} seeds show a gain of {least:.2g} with a chance of {CHANCE:.0%}; {more}"
    return f"{label}: no difference seen, {'-' if found.mean < 0 else '+'}{size}, {ending}"


def say_seeds(gain: float, spread: float, freedom: int, done: int, seconds: float) -> str:
    """Say how many seeds would show a gain, after `done` of them; a pair takes so many seconds, if known."""
    seeds = seeds_to_show(gain, spread, freedom, looked=done > 1)
    more = (seeds - done) * seconds / 60
    number = f"{seeds} seeds" if seeds < MOST else f"{MOST:,} seeds or more"
    minutes = f" ({math.ceil(more)} more minutes of steps)" if more > 0 else ""
    look = ", when looked at again" if done > 1 else ""
    return f"{number}{minutes} would show {gain:g} with a chance of {CHANCE:.0%}{look}."


def provenance(record: Record) -> str:
    """Say how, where and when the runs were made."""
    runs = [run for entry in record.sets.values() for run in entry.runs]
    days, hours = sorted({run.date for run in runs}), sum(run.seconds for run in runs) / 3600
    made = f"{len(runs)} runs, {hours:.1f} hours of steps, {' to '.join(sorted({days[0], days[-1]}))}"
    lines = [f"Made by `{record.experiment.command}`: {made}."]
    lines += [f"On {cpu}: {n} runs." for cpu, n in Counter(run.cpu for run in runs).items()]
    lines += [f"Versions: {found}." for found in sorted({run.versions for run in runs})]
    if record.taken_out:
        lines.append("Rows with brackets need options that are gone. Commit dd10b5e has them.")
    timed = {entry.timed for entry in record.sets.values() if entry.timed}
    return "\n".join(lines + [f"Steps timed {found}." for found in sorted(timed)])


def save_svg(path: Path, draw: Callable[[Any], None], height: float = 5.0) -> None:
    """Save what is drawn into a figure's axes. The same results make the same bytes."""
    import matplotlib  # here: it takes half a second
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, height), layout="constrained")
        draw(figure.subplots())
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw(axes: Any, record: Record) -> None:
    """Draw a row for each change: a dot for each seed's difference, and the mean with its interval."""
    labels = [*record.sets][1:]
    for row, label in enumerate(labels):
        found = against(record, label)
        color = {"helps": "#2a8a57", "hurts": "#b3261e"}.get(found.verdict, "#6b7280")
        axes.plot(found.pairs, [row - 0.1] * len(found.pairs), "o", ms=4, alpha=0.5, color=color)
        if np.isfinite(found.half):
            axes.errorbar(found.mean, row + 0.15, xerr=found.half, fmt="D", ms=5, capsize=4, color=color)
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(range(len(labels)), [textwrap.fill(label, 30) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(record.experiment.question.splitlines()[0], fontsize="medium", wrap=True)
    unit = UNIT[record.experiment.metric]
    axes.set_xlabel(f"difference from {base_of(record)} in {unit} (left is better), 95% intervals")
