"""An experiment's table in Markdown and its plot: final validation losses and their spread over the seeds.

Option sets are compared seed by seed: runs of one seed see the same batches. Intervals are Student's, at 95%.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from config.files import write_whole
from config.options import Options
from experiments.record import Record


def write_report(record: Record) -> None:
    experiment, path = record.experiment, record.path.with_suffix(".md")
    if record.table().empty:
        print(f"{experiment.name}: no run has ended yet")
        return
    write_whole(path, markdown(record))

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_title(experiment.question, fontsize="medium", wrap=True)
        axes.grid(alpha=0.3)
        (draw_lines if experiment.lines else draw_dots)(axes, record)

    save_svg(path.with_suffix(".svg"), fill)
    print(f"the table: {path}")


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
        shown = f"{label} (tried, and taken out)" if label in record.taken_out else label
        rows.append(f"| {shown} | {describe(losses)} | {against} | {len(losses)} | {timed} | {steps:,} |")
    parts = [
        f"# {experiment.name}",
        experiment.question,
        "\n".join(rows),
        f"![{experiment.question}]({experiment.name}.svg)",
        "\n".join(f"- {line}" for line in (experiment.findings or best_of_each)(record)),
        missing(record),
        "\n".join(provenance(record)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def describe(losses: pd.Series) -> str:
    """Return mean ± standard deviation. No figure comes from one seed."""
    ended = losses.dropna()
    diverged = f"{len(losses) - len(ended)} of {len(losses)} diverged" if len(ended) < len(losses) else ""
    if len(ended) < 2:
        return diverged or ("not run" if losses.empty else "one seed: no figure")
    return f"{fmean(ended):.4f} ± {ended.std():.4f}" + (f" ({diverged})" if diverged else "")


def describe_difference(ours: pd.Series, theirs: pd.Series) -> str:
    """Return a difference with its interval, bold where 0 is outside of it."""
    mean, half = difference(ours, theirs)
    pairs = (ours - theirs).count()
    if pairs < 2:
        return ""
    text = f"{mean:+.4f} ± {half:.4f}"
    text = f"**{text}**" if abs(mean) > half else text
    return f"{text} ({pairs} pairs)" if pairs < ours.count() else text


def difference(ours: pd.Series, theirs: pd.Series) -> tuple[float, float]:
    """Return the mean of our losses less theirs, and half its interval, NaN below two pairs."""
    return interval((ours - theirs).dropna())


def interval(values: pd.Series) -> tuple[float, float]:
    """Return the mean, and half its interval."""
    from scipy.stats import t  # here: it takes long to import

    return values.mean(), float(t.ppf(0.975, len(values) - 1)) * values.sem()


def seed_interval(losses: pd.Series) -> float:
    """Return how far from the runs' mean one more ends, in 19 cases of 20."""
    return interval(losses)[1] * (len(losses) + 1) ** 0.5


def best_of_each(record: Record) -> list[str]:
    """Name each line's lowest mean loss, and the sets whose difference from it may be 0.

    Sets with one seed, or of which a run diverged, are left out.
    """
    found = []
    for name, labels in record.experiment.lines.items():
        losses = {label: record.losses(label) for label in labels}
        able = {label: x for label, x in losses.items() if len(x) > 1 and x.notna().all()}
        if not able:
            continue
        lowest = min(able, key=lambda label: able[label].mean())
        edge = " (the edge of what was tried)" if lowest in (labels[0], labels[-1]) else ""
        gaps = {label: difference(able[label], able[lowest]) for label in able if label != lowest}
        near = [label for label, (mean, half) in gaps.items() if not mean > half]
        first, *others = (label.removeprefix(name).lstrip(", ") for label in (lowest, *near))
        noise = f"; within noise of it: {'; '.join(others)}" if others else ""
        mean, half = interval(able[lowest])
        found.append(f"Lowest mean of {name}: {first}{edge}, {mean:.4f} ± {half:.4f} (95%){noise}.")
    return found


def missing(record: Record) -> str:
    seeds, wanted = record.experiment.seeds, record.experiment.sets
    done, due = sum(min(len(record.runs(label)), seeds) for label in wanted), seeds * len(wanted)
    if done == due:
        return f"Complete: {seeds} seeds of each."
    return f"{done} of {due} runs are done ({seeds} seeds of each); `--list` names the others."


def provenance(record: Record) -> list[str]:
    """Say how, where and when the runs were made."""
    experiment, runs = record.experiment, record.table()
    days, hours = sorted({runs["date"].min(), runs["date"].max()}), runs["seconds"].sum() / 3600
    lines = [
        f"Made by `python -m experiments.{experiment.program or experiment.name}`: {len(runs)} runs of "
        f"`{experiment.config}`, {hours:.1f} hours by the clock ({' to '.join(days)})."
    ]
    lines += [f"On {cpu}: {n} runs." for cpu, n in runs["cpu"].value_counts(sort=False).items()]
    lines += [f"Versions: {found}." for found in sorted(set(runs["versions"]))]
    if record.taken_out:
        lines.append("Rows with brackets need options that are gone. Commit dd10b5e has them.")
    timed = {entry["timed"] for entry in map(record.entry, record.options) if "timed" in entry}
    return lines + [f"Steps timed {found}." for found in sorted(timed)]


def save_svg(path: Path, fill: Callable[[Any], None]) -> None:
    """Save the figure that `fill` draws into. The same results make the same bytes."""
    import matplotlib  # here: it takes half a second
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        fill(figure := Figure(figsize=(8, 5), layout="constrained"))
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw_means(axes: Any, name: str, values: pd.DataFrame, band: bool = False) -> None:
    """Draw each row's mean over the index, within one standard deviation."""
    mean, spread = values.mean(axis=1), values.std(axis=1).fillna(0)
    if band:
        (line,) = axes.plot(mean.index, mean, marker="o", ms=3, lw=1, label=name)
        axes.fill_between(mean.index, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, lw=0)
    else:
        axes.errorbar(mean.index, mean, spread, marker="o", ms=4, lw=1, capsize=3, label=name)


def draw_curve(axes: Any, record: Record, label: str) -> None:
    """Draw an option set's validation loss over the steps that all of its runs have."""
    if runs := [run for run in record.runs(label) if run["val"] is not None]:
        curves = {run["seed"]: {step: val for step, _, val in run["evaluations"]} for run in runs}
        values = pd.DataFrame(curves).sort_index().dropna()
        draw_means(axes, f"{label} ({len(runs)} seeds)", values, band=True)


def draw_lines(axes: Any, record: Record) -> None:
    """Draw the experiment's lines: the final loss over an option."""
    x = record.experiment.x
    for name, labels in record.experiment.lines.items():
        able = [label for label in labels if record.runs(label)]
        losses = {record.options[label][x]: record.losses(label) for label in able}
        draw_means(axes, name, pd.DataFrame(losses).T.dropna(how="all"))
    axes.set(xscale="log", xlabel=x, ylabel="final validation loss (nats per token)")
    axes.legend(fontsize="small")


def draw_dots(axes: Any, record: Record) -> None:
    """Draw a row for each option set: a dot for each seed, a bar at the mean."""
    sets = {label: record.losses(label).dropna() for label in record.options}
    for row, losses in enumerate(sets.values()):
        axes.plot(losses, [row] * len(losses), "o", ms=4, alpha=0.6)
        if len(losses) > 1:
            axes.plot([losses.mean()] * 2, [row - 0.35, row + 0.35], color="black", lw=1.5)
    axes.axvline(next(iter(sets.values())).mean(), color="gray", lw=0.8, ls="--")
    axes.set_yticks(range(len(sets)), list(sets))
    axes.invert_yaxis()
    axes.set(xlabel="final validation loss (nats per token): a dot for each seed, bars at the means")
