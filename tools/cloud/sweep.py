"""Train many runs, here one after another or at Modal some at a time."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

from config.command_line import UserError, given
from config.options import Options
from tools.cloud.jobs import Job, job_here, make_job, resume_options, run_job
from tools.cloud.options import LaunchOptions
from tools.cloud.places import Runs
from tools.cloud.rent import announce, rent


def run_sweep(argv: list[str], options: LaunchOptions, remote: bool) -> int:
    """Train what is not done, and print all runs by best loss. Return 1 if one failed."""
    jobs = plan_sweep(argv, options, remote)
    if remote and not announce([*jobs.values()], options):
        return 0
    runs = Runs(remote)
    due = {name: job for name, job in jobs.items() if not runs.have_ended(name, job.words)}
    statuses = rent("sweep", [*due.values()], options) if remote and due else map(train_here, due.values())
    failed = {name for name, status in zip(due, statuses, strict=True) if status}
    for (_, line), ended in sorted((runs.summary(name), name not in failed) for name in jobs):
        print(line if ended else f"{line}: failed")
    return 1 if failed else 0


def plan_sweep(argv: list[str], options: LaunchOptions, remote: bool) -> dict[str, Job]:
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
    print(f"training {job.folder}", flush=True)
    status, stop = run_job(replace(job, words=[*job.words, *resume_options(job.folder)]))
    if stop:
        raise KeyboardInterrupt
    return status
