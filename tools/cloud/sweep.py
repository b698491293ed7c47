"""Train many runs, here one after another or at Modal some at a time: a sweep, or an experiment."""

import importlib
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from config.command_line import UserError, check_name, given
from config.files import is_plain_name
from config.options import NOT_RESUMED, Options
from experiments.runner import Task, run
from tools.cloud.jobs import Job, check_unchanged, has_ended, make_job, resume_options, run_job
from tools.cloud.options import LaunchOptions
from tools.cloud.places import Here, InVolume, describe_run, losses_of, read_records
from tools.cloud.rent import announce, rent
from tools.cloud.supervise import ROOT


def run_sweep(argv: list[str], options: LaunchOptions, remote: bool) -> int:
    """Train the runs of a sweep that are not done, and print all by their best loss. Return 1 if one failed.

    Raises UserError for a mistake, and where a run of that name has other options.
    """
    jobs = plan_sweep(argv, options, remote)
    if remote and not announce(jobs, options):
        return 0
    place = InVolume() if remote else Here()
    for job in jobs:
        check_unchanged(place, job)
    due = [job for job in jobs if not has_ended(place, job)]
    statuses = rent("sweep", due, options) if remote and due else map(train_here, due)
    failed = {job.run_name for job, status in zip(due, statuses, strict=True) if status}
    best = {
        job.run_name: min(losses_of(read_records(place, job.run_name)), default=float("inf")) for job in jobs
    }
    for name in sorted(best, key=best.__getitem__):
        print(describe_run(place, name) + (": failed" if name in failed else ""))
    return 1 if failed else 0


def train_here(job: Job) -> int:
    """Train a run of a sweep. Return its status. Ctrl-C ends the sweep with it, by KeyboardInterrupt."""
    print(f"training {job.run_name}", flush=True)
    folder = Path(job.run_name)
    status, stop = run_job(replace(job, words=[*job.words, *resume_options(folder)]), folder)
    if stop:
        raise KeyboardInterrupt
    return status


def plan_sweep(argv: list[str], options: LaunchOptions, remote: bool) -> list[Job]:
    """Return the jobs of a sweep, each run named by its values. Raises UserError."""
    axes = dict(parse_axis(word.removeprefix("--sweep=")) for word in argv if word.startswith("--sweep="))
    words = [word for word in argv if not word.startswith("--sweep=")]
    base = options.run_name or given(words, Options).get("out_dir", Options.out_dir)
    if not axes:
        raise UserError("--sweep is missing: what to sweep, as in --sweep=learning_rate:3e-4,1e-3")
    jobs = []
    for values in itertools.product(*axes.values()):
        own = dict(zip(axes, values, strict=True))
        shown = (f"{option}-{re.sub('[^A-Za-z0-9.]+', '-', value)}" for option, value in own.items())
        name = ".".join([base, *shown])
        its_words = [*words, *(f"--{option}={value}" for option, value in own.items())]
        if remote:
            jobs.append(make_job("train", its_words, replace(options, run_name=Path(name).name)))
        else:
            jobs.append(Job("train", its_words, name))
    if len({job.run_name for job in jobs}) < len(jobs):
        raise UserError("--sweep: two runs would have the same name: write their values in another way")
    return jobs


def parse_axis(text: str) -> tuple[str, list[str]]:
    """Return the option and the values of learning_rate:3e-4,1e-3. Raises UserError."""
    name, _, values = text.partition(":")
    name = check_name(name.replace("-", "_"), "--sweep: ", Options)
    found = values.split(",")
    if not all(found):
        raise UserError(f"--sweep={text}: expected an option and its values, as in learning_rate:3e-4,1e-3")
    if name in (*NOT_RESUMED, "max_iters", "dataset"):
        raise UserError(f"--sweep={text}: {name} is no axis of a sweep; give it once, for all runs")
    for value in found:
        given([f"--{name}={value}"], Options)
    return name, found


# Experiments


def run_experiment(argv: list[str], options: LaunchOptions, remote: bool) -> int:
    """Train the runs that a program of experiments/ lacks, and write its table and plot. Raises UserError."""
    name, *words = argv or [""]
    program = None
    if is_plain_name(name) and (ROOT / "experiments" / f"{name}.py").is_file():
        program = importlib.import_module(f"experiments.{name}")
    if not hasattr(program, "EXPERIMENTS"):
        raise UserError(f"experiment {name}: expected the name of a program in experiments/ first, as ladder")
    if remote and "--time" in words:
        raise UserError("--time compares steps on this machine: leave out --run-on-remote and --dry-run")

    def train(due: list[Task], _, ended: Callable[[Task, dict], None]) -> int:
        """Train at Modal the runs that have no result there. Return how many have none afterwards."""
        if not due:
            print("all runs that are asked for have results here")
        left = due if options.dry_run else take_results(due, ended)
        jobs = [job_of_task(task, options) for task in left]
        if not jobs or not announce(jobs, options):
            return 0
        try:
            rent(name, jobs, options)
        finally:  # when this is stopped, some have ended
            left = take_results(left, ended)
        if left:
            print(f"without a result: {'; '.join(map(str, left))}; the same command tries these again")
        return len(left)

    return run(program.EXPERIMENTS, words, train=train if remote else None)


def job_of_task(task: Task, options: LaunchOptions) -> Job:
    """Return the job that trains a run, and leaves result.json in its folder."""
    job = make_job("train", task.words(), replace(options, run_name=name_of(task)))
    return replace(job, command="experiment")


def name_of(task: Task) -> str:
    return f"{task.experiment}.{task.folder.name}"


def take_results(due: list[Task], ended: Callable[[Task, dict], None]) -> list[Task]:
    """Give the results that are in the Volume to `ended`. Return the runs that have none there."""
    runs = InVolume()
    left = []
    for task in due:
        if result := runs.read(f"{name_of(task)}/result.json"):
            ended(task, json.loads(result))
        else:
            left.append(task)
    return left
