"""The launcher: every command on a rented machine at Modal, or on this one: docs/cloud.md.

    modal run app.py --run-on-remote true                           a first small model, for cents
    python app.py                                                   the same here: no account, no network
    modal run app.py::NAME --run-on-remote true ...                 any other command at Modal; here it is
    python app.py NAME ...                                          without --run-on-remote, in either form
    python app.py NAME --dry-run ...                                what would run there, and at what cost

NAME is train, sample, prepare, evaluate, bench, profile, export, serve, sweep, list, watch or fetch. Words
that are not options of the launcher (python app.py --help) go to its script.
"""

import difflib
import itertools
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import modal

from common.command_line import given
from common.errors import UserError, command
from config.options import Options
from tools.cloud import VOLUME, places, rent
from tools.cloud.jobs import (
    COMMANDS,
    Job,
    LaunchOptions,
    job_here,
    make_job,
    resume_options,
    run_job,
    split_launch,
)
from tools.cloud.places import Runs

FIRST = "no config was given: training config/quickstart.py on this project's text, then a sample of it"
SMALL: dict[str, Any] = {"gpu": "L4", "timeout_hours": 0.5, "retries": 0, "run_name": "out-quickstart"}


def start(argv: list[str]) -> int:
    """Run a command. Return its status. Raises UserError."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops a run as Ctrl-C does
    asked, words = split_launch(argv)
    name, words = split_command(words)
    defaults = COMMANDS[name].defaults
    if first := name == "train" and not words:
        print(FIRST)
        words, defaults = ["config/quickstart.py"], SMALL
    options = LaunchOptions(**defaults | asked)
    remote = options.run_on_remote or options.dry_run
    try:
        if name in ("list", "watch", "fetch"):
            status = look(name, words, options)
        elif name == "sweep":
            status = sweep_runs(words, options, remote)
        elif remote:
            status = launch(replace(make_job(name, words, options), sample=first), options)
        else:
            words += ["--init_from=auto"] if first else []
            status, _ = run_job(replace(job_here(name, words, options), sample=first))
    except modal.exception.Error as error:
        raise UserError(f"Modal: {error}") from None
    return status if status >= 0 else 128 - status  # for a signal, the status that a shell has


def split_command(words: list[str]) -> tuple[str, list[str]]:
    """Return a command's name and the words for it. A config or an option comes first for `train` alone."""
    if not words or words[0].startswith("-") or words[0].endswith(".py"):
        return "train", words
    if words[0] not in COMMANDS:
        nearest = difflib.get_close_matches(words[0], COMMANDS, n=1)
        advice = f"did you mean {nearest[0]}? " if nearest else ""
        raise UserError(f"{words[0]} is not a command; {advice}There are {', '.join(COMMANDS)}")
    return words[0], words[1:]


def look(name: str, words: list[str], options: LaunchOptions) -> int:
    """List, watch or fetch runs."""
    if words:
        raise UserError(f"{words[0]}: {name} takes --run-name and --run-on-remote alone")
    if name == "list":
        runs = Runs(options.run_on_remote)
        names = [run for run in runs.names() if "options.json" in runs.names(run)]
        print("\n".join(runs.summary(run)[1] for run in names) or "no run is there")
    elif not options.run_name:
        raise UserError(f"--run-name is missing: {name} needs one, and list shows those that are there")
    elif name == "watch":
        places.watch(Runs(options.run_on_remote), options.run_name)
    else:
        places.fetch(options.run_name)
    return 0


def launch(job: Job, options: LaunchOptions) -> int:
    """Run a job at Modal. Return its status."""
    if job.command == "serve":
        return rent.serve(job, options)
    if not rent.announce([job], options):
        return 0
    if job.command == "train" and Runs(remote=True).have_ended(job.name, job.words):
        print(f"runs/{job.name} has come to its end; nothing is rented")
        return 0
    (status,) = rent.rent(job.name, [job], options)
    if job.command == "train" and status in (0, 130):
        print(f"modal run app.py::watch --run-name={job.name} shows the run, and ::fetch brings it here")
    return status


def sweep_runs(argv: list[str], options: LaunchOptions, remote: bool) -> int:
    """Train the runs that are not done, and print all by best loss. Return 1 if one failed."""
    jobs = plan_sweep(argv, options, remote)
    if remote and not rent.announce([*jobs.values()], options):
        return 0
    runs = Runs(remote)
    due = {name: job for name, job in jobs.items() if not runs.have_ended(name, job.words)}
    if remote and due:
        statuses = rent.rent("sweep", [*due.values()], options)
    else:
        statuses = map(train_here, due.values())
    failed = {name for name, status in zip(due, statuses, strict=True) if status}
    for (_, line), ended in sorted((runs.summary(name), name not in failed) for name in jobs):
        print(line if ended else f"{line}: failed")
    return 1 if failed else 0


def plan_sweep(argv: list[str], options: LaunchOptions, remote: bool) -> dict[str, Job]:
    """Return a sweep's runs by name: one for each combination of its values. Raises UserError."""
    axes = [word.removeprefix("--sweep=").partition(":") for word in argv if word.startswith("--sweep=")]
    words = [word for word in argv if not word.startswith("--sweep=")]
    base = options.run_name or given(words, Options).get("out_dir", Options.out_dir)
    if not axes:
        raise UserError("--sweep is missing: what to sweep, as in --sweep=learning_rate:3e-4,1e-3")
    make, jobs = make_job if remote else job_here, {}
    for point in itertools.product(*([(option, x) for x in values.split(",")] for option, _, values in axes)):
        shown = (f"{option}-{re.sub('[^A-Za-z0-9.]+', '-', value)}" for option, value in point)
        name = ".".join([Path(base).name if remote else base, *shown])
        its_words = [*words, *(f"--{option}={value}" for option, value in point)]
        jobs[name] = make("train", its_words, replace(options, run_name=name))
    return jobs


def train_here(job: Job) -> int:
    """Train a run here, from its last checkpoint if it has one. Return its status."""
    print(f"training {job.folder}", flush=True)
    status, stop = run_job(replace(job, words=[*job.words, *resume_options(job.folder)]))
    if stop:
        raise KeyboardInterrupt
    return status


# `modal run app.py::NAME` looks for an App of that name in this module: one App has all the names. It has no
# functions, which Modal would build before the entrypoint runs, even for a run here.
train = sample = prepare = evaluate = bench = profile = export = serve = modal.App(VOLUME)
sweep = list = watch = fetch = train


@train.local_entrypoint()
def main(*words: str) -> None:  # not options: Modal refuses a value for one of type `bool`
    """Run the command that `modal run` names; its list and watch show what is in the Volume."""
    _, _, name = (click.get_current_context().info_name or "").partition("::")
    remote = ["--run-on-remote"] if name in ("list", "watch") else []
    command(lambda _: start([*filter(None, [name]), *remote, *words]))


if __name__ == "__main__":
    command(start)
