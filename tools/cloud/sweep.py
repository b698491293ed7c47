"""Train the product of some options' values, one run for each, and compare the runs.

    --sweep=learning_rate:3e-4,1e-3 --sweep=seed:1,2,3      six runs
    --sweep_iters=500                                       each of so many steps; --best goes on from there
    --best                                                  then train the best run to the config's max_iters

Each run has a name of its own, such as `out.learning_rate-3e-4.seed-1`, and is an ordinary run. The same
command again goes on where it stopped. Where the runs lie and how they are trained is the caller's affair.
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from config.command_line import Count, UserError, check_name, check_value, given, parse_literal
from config.options import NOT_RESUMED, Options
from tools.cloud.commands import Job
from tools.cloud.jobs import check_unchanged
from tools.cloud.look import Standing, read_options, read_records, standing
from tools.cloud.options import LaunchOptions
from tools.cloud.places import Place

MakeJob = Callable[[list[str], LaunchOptions], Job]
Train = Callable[[list[Job]], list]  # trains runs, and returns their statuses


@dataclass(frozen=True)
class SweepOptions:
    """The options that only a sweep has, beside --sweep."""

    program: ClassVar[str] = "app.py sweep"
    purpose: ClassVar[str] = "Train the product of some options' values."

    sweep_iters: Count | None = None  # steps of each run; None: as many as the options say
    best: bool = False  # then train the best run to its end


@dataclass(frozen=True)
class Sweep:
    """A sweep that is planned: its runs' jobs, and the values that each run has of its own, by option."""

    name: str
    variants: list[dict[str, str]]
    jobs: list[Job]
    iters: int  # steps of each run
    full: int  # steps of a whole run
    best: bool

    def last_job(self) -> list[Job]:
        """Return a job that costs what training the best run to its end does; none if it will not be."""
        return self.jobs[:1] if self.best and self.full > self.iters else []


def plan_sweep(argv: list[str], options: LaunchOptions, make_job: MakeJob) -> Sweep:
    """Return the sweep that a command line asks for; `make_job` makes the job of one run.

    Raises UserError as `make_job` does, and for an axis that is none of train.py's options, or a bad value.
    """
    axes, own, words = {}, {}, []
    for word in argv:
        key, _, text = word.partition("=")
        name = key[2:].replace("-", "_")
        if key == "--sweep":
            option, values = parse_axis(text)
            axes[option] = values
        elif key.startswith("--") and name in ("best", "sweep_iters"):
            own[name] = check_value(name, parse_literal(text or "True"), "--", SweepOptions)
        else:
            words.append(word)
    if not axes:
        raise UserError("--sweep is missing: what to sweep, as in --sweep=learning_rate:3e-4,1e-3")
    asked = SweepOptions(**own)
    full = given(words, Options).get("max_iters", Options.max_iters)
    base = make_job(words, options).run_name
    variants = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    jobs = []
    for variant in variants:
        its_words = [*words, *(f"--{name}={value}" for name, value in variant.items())]
        its_words += [f"--max_iters={asked.sweep_iters}"] if asked.sweep_iters else []
        jobs.append(make_job(its_words, replace(options, run_name=name_of(base, variant))))
    if len({job.run_name for job in jobs}) < len(jobs):
        raise UserError("--sweep: two runs would have the same name: write their values in another way")
    return Sweep(base, variants, jobs, asked.sweep_iters or full, full, asked.best)


def run_sweep(sweep: Sweep, place: Place, train: Train) -> int:
    """Train the runs that are due, and print and draw a comparison of all. Return 1 if one failed, or else 0.

    Then, if that was asked for, train the best to its end. Raises UserError as `is_due` does.
    """
    failed = train_due(sweep.jobs, sweep.iters, place, train)
    ranked = compare(place, sweep, failed)
    draw_sweep(place, sweep, Path(f"{Path(sweep.name).name}.sweep.png"))
    if sweep.best and ranked:
        (best,) = [job for job in sweep.jobs if job.run_name == ranked[0].name]
        print(f"the best, to its end at iter {sweep.full:,}: {best.run_name}", flush=True)
        best = replace(best, words=[*best.words, f"--max_iters={sweep.full}"])
        failed += train_due([best], sweep.full, place, train)
    return 1 if failed else 0


def train_due(jobs: list[Job], iters: int, place: Place, train: Train) -> list[str]:
    """Train those of the jobs that have not come to `iters` yet. Return the names of those that failed."""
    due = [job for job in jobs if is_due(place, job, iters)]
    statuses = train([go_on(place, job) for job in due]) if due else []
    return [job.run_name for job, status in zip(due, statuses, strict=True) if status != 0]


def is_due(place: Place, job: Job, iters: int) -> bool:
    """Tell whether a run has still to be trained, and nobody trains it just now.

    Raises UserError where another run has its name.
    """
    found, theirs = standing(place, job.run_name), read_options(place, job.run_name)
    if found is None or theirs is None:
        return True
    if found.saved:
        check_unchanged(job.words, theirs, job.run_name, "--run-name", free=("max_iters",))
    return found.state != "running" and found.saved < iters


def go_on(place: Place, job: Job) -> Job:
    """Return the job that goes on with a run that has a checkpoint: to more steps, perhaps."""
    found = standing(place, job.run_name)
    return replace(job, words=[*job.words, "--init_from=resume"]) if found and found.saved else job


def name_of(base: str, variant: dict[str, str]) -> str:
    """Return the name of a run, which shows what it has of its own."""
    shown = (f"{name}-{re.sub('[^A-Za-z0-9.]+', '-', value)}" for name, value in variant.items())
    return ".".join([base, *shown])


def parse_axis(text: str) -> tuple[str, list[str]]:
    """Return the option and the values of learning_rate:3e-4,1e-3. Raises UserError."""
    name, colon, values = text.partition(":")
    name = check_name(name.replace("-", "_"), "--sweep: ", Options)
    if not colon or not all(found := values.split(",")):
        raise UserError(f"--sweep={text}: expected an option and its values, as in learning_rate:3e-4,1e-3")
    if name in (*NOT_RESUMED, "max_iters", "dataset"):
        raise UserError(f"--sweep={text}: {name} is no axis of a sweep; give it once, for all runs")
    if len(set(found)) < len(found):
        raise UserError(f"--sweep={text}: a value is there twice")
    for value in found:
        given = value if isinstance(getattr(Options, name), str) else parse_literal(value)
        check_value(name, given, "--sweep: ", Options)
    return name, found


# Comparison


def compare(place: Place, sweep: Sweep, failed: list[str]) -> list[Standing]:
    """Print a table of the runs, the best first, name those that failed, and return those with a loss."""
    variants = {job.run_name: variant for job, variant in zip(sweep.jobs, sweep.variants, strict=True)}
    found = [standing(place, name) for name in variants]
    ranked = sorted(
        (run for run in found if run and run.best is not None), key=lambda run: (run.best, run.name)
    )
    rows = [[*sweep.variants[0], "final", "best", "", "run"]]
    for run in ranked:
        state = f"stopped at {run.iteration}" if run.state == "stopped" else run.state
        state = "failed" if run.name in failed else state
        losses = [f"{loss:.4f}" for loss in (run.val_loss, run.best) if loss is not None]
        rows.append([*variants[run.name].values(), *losses, state, run.name])
    for name in variants.keys() - {run.name for run in ranked}:
        rows.append([*variants[name].values(), "-", "-", "failed" if name in failed else "no loss yet", name])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    if failed:
        print(f"failed: {', '.join(failed)}; the same command tries these again")
    return ranked


def draw_sweep(place: Place, sweep: Sweep, path: Path) -> None:
    """Draw the validation losses of all runs into a PNG file."""
    from matplotlib.figure import Figure  # here, because it takes half a second and is needed at the end only

    axes: Any = (figure := Figure(figsize=(8, 5), layout="constrained")).subplots()
    for job, variant in zip(sweep.jobs, sweep.variants, strict=True):
        records = read_records(place, job.run_name)
        points = [(record["iter"], record["val/loss"]) for record in records if "val/loss" in record]
        if points:
            label = ", ".join(f"{option} {value}" for option, value in variant.items())
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, label=label)
    if not axes.lines:
        return
    axes.set(xlabel="iteration", ylabel="validation loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, format="png", dpi=120)
    print(f"their curves: {path}")
