"""Train an experiment's runs, some option sets with several seeds each, and keep their results.

    python -m experiments.precision                 train what is missing, then write the table and the plot
    python -m experiments.precision --time          time each set's step, by turns
    python -m experiments.precision --equal_time    then: each with as many steps as take the first set's time

A killed run goes on from its last checkpoint; one whose result is in experiments/results/ is not repeated.
"""

import json
import os
import re
import shutil
import signal
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen
from typing import ClassVar

import jax

from config.command_line import Count, UserError, command, given
from config.options import Options
from data.dataset import prepare_if_missing
from experiments.record import KEEPING, RESULTS, ROOT, Experiment, Record, data_mark, machine
from experiments.report import write_report
from parallel.machines import choose_device
from parallel.mesh import make_mesh
from runs.load import choose_config, open_dataset
from tools.benchmarks.variants import JaxStep, take_turns

EQUAL_TIME = "_equal_time"  # ends such experiments' names


@dataclass(frozen=True)
class Task:
    """A run to train."""

    experiment: str
    label: str
    options: dict  # that differ from train.py's defaults
    seed: int
    folder: Path

    def words(self) -> list[str]:
        values = self.options | KEEPING | {"seed": self.seed, "out_dir": str(self.folder)}
        return [f"--{name}={value}" for name, value in values.items()]

    @property
    def dataset(self) -> str:
        return self.options.get("dataset", Options.dataset)

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"


@dataclass(frozen=True)
class RunnerOptions:
    program: ClassVar[str] = "-m experiments.NAME"
    purpose: ClassVar[str] = "Train the runs that an experiment lacks, then write its table and its plot."

    seeds: Count | None = None  # of each option set; None: the experiment's
    jobs: Count = 1  # runs at once
    only: str = ""  # only option sets with this in their name
    out: str = "out-experiments"  # the folder of the runs
    list: bool = False  # only print what is done and missing
    draw: bool = False  # only write table and plot
    time: bool = False  # only time a step of each option set, by turns
    equal_time: bool = False  # as many steps of each option set as take the first one's time


def main(experiments: list[Experiment]) -> None:
    command(lambda argv: run(experiments, argv))


def run(experiments: list[Experiment], argv: list[str], results: Path = RESULTS) -> int:
    """Do as the command line says. Return 1 if a run failed."""
    asked = RunnerOptions(**given(argv, RunnerOptions))
    chosen = [experiment for experiment in experiments if labels(experiment, asked.only)]
    if not chosen:
        raise UserError(f"--only={asked.only}: no option set has this in its name; --list names them")
    if asked.equal_time:
        chosen = [at_equal_time(experiment, results) for experiment in chosen]
    records = {experiment.name: Record(experiment, results) for experiment in chosen}
    if asked.list:
        for record in records.values():
            print_list(record, asked)
        return 0
    due = [task for record in records.values() for task in tasks(record, asked)]

    def keep(task: Task, result: dict) -> None:
        record = Record(records[task.experiment].experiment, results)  # another process may write, too
        record.add(task.label, result)
        print(f"{task}: val loss {result['val'] or 'diverged'}", flush=True)

    failed = 0
    try:
        if asked.time:
            for record in records.values():
                time_steps(record, labels(record.experiment, asked.only))
        elif not asked.draw:
            for task in due:
                prepare_if_missing(task.dataset)
                records[task.experiment].check_data(task.dataset, data_mark(task.dataset))
            failed = train_all(due, asked.jobs, keep)
    finally:  # whatever stopped it, the tables have what is done
        for record in records.values():
            write_report(Record(record.experiment, results))
    return 1 if failed else 0


def labels(experiment: Experiment, only: str) -> list[str]:
    """Return the option sets to train that have `only` in their names."""
    name = experiment.name.removesuffix(EQUAL_TIME)
    return [label for label in experiment.sets if only in f"{name}: {label}"]


def tasks(record: Record, asked: RunnerOptions) -> list[Task]:
    """Return the runs without a result, the first seed of each set first."""
    found, name = [], record.experiment.name
    for seed in range(1, (asked.seeds or record.experiment.seeds) + 1):
        for label in labels(record.experiment, asked.only):
            options = record.options[label]
            if seed not in record.losses(label):
                slug = re.sub("[^A-Za-z0-9.]+", "-", label).strip("-")
                mark = zlib.crc32(repr(options).encode())  # other options, another folder
                folder = Path(asked.out) / name / f"{slug}.{mark:08x}.seed-{seed}"
                found.append(Task(name, label, options, seed, folder))
    return found


def print_list(record: Record, asked: RunnerOptions) -> None:
    """Print how many runs the option sets have, and which they lack."""
    print(f"{record.experiment.name}: {record.experiment.question}")
    due = tasks(record, asked)
    for label in labels(record.experiment, asked.only):
        seeds = ", ".join(str(task.seed) for task in due if task.label == label)
        missing = f", missing: seed {seeds}" if seeds else ""
        print(f"  {label:36} {len(record.runs(label))} done{missing}")


def time_steps(record: Record, labels: list[str]) -> None:
    """Write the median time of a step to the record. By turns, other programs slow all sets alike."""
    choose_device("auto")
    with jax.set_mesh(make_mesh("data:1")):
        steps = []
        for label in labels:
            options = replace(Options(), **record.options[label])
            config = choose_config(options, open_dataset(options).meta)
            steps.append(JaxStep(config, options, name=label))
            steps[-1].run(1)
        times = take_turns(steps, None)
    about = machine()
    timed = f"on {about['date']} on {about['cpu']}, {about['versions'].partition(', equinox')[0]}"
    for label, found in times.items():
        ms = 1e3 * median(found)
        record.set(label, ms=round(ms, 2), timed=timed)
        print(f"{label:36} {ms:8.2f} ms/step over {len(found)} turns")


def at_equal_time(experiment: Experiment, results: Path) -> Experiment:
    """Return the experiment with as many steps of each set as take the time of the first set's."""
    record, sets = Record(experiment, results), {}
    first = record.entry(next(iter(experiment.sets))).get("ms", 0.0)
    for label, own in experiment.sets.items():
        if not (ms := record.entry(label).get("ms")):
            raise UserError(f"--equal_time: {experiment.name}: no step time of {label}: run --time first")
        steps = round(record.options[label]["max_iters"] * first / ms)
        sets[label] = own | {"max_iters": steps, "lr_decay_iters": steps, "eval_interval": -(-steps // 4)}
    question = f"{experiment.question} In equal time."
    return replace(experiment, name=experiment.name + EQUAL_TIME, question=question, sets=sets)


def train_all(due: list[Task], jobs: int, ended: Callable[[Task, dict], None]) -> int:
    """Train runs, `jobs` at once, and give each result to `ended`. Return how many failed.

    Ctrl-C and SIGTERM stop the runs as well, which save checkpoints.
    """
    waiting, running, failed = deque(due), [], []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.popleft()
                print(f"training {task}: {task.folder}", flush=True)
                running.append((task, start(task, jobs)))
            time.sleep(0.2)
            for task, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((task, process))
                if result := result_of(task, process.returncode):
                    ended(task, result)
                    shutil.rmtree(task.folder / "checkpoints", ignore_errors=True)
                else:
                    failed.append(task)
                    print(f"{task}: failed: {last_line(task)}", file=sys.stderr)
    finally:
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.wait()
    if failed:
        print(f"failed: {'; '.join(map(str, failed))}; the same command tries these again", file=sys.stderr)
    return len(failed)


def start(task: Task, jobs: int) -> Popen:
    """Start train.py, with its output in train.log."""
    share = {"PJRT_NPROC": str(max(1, (os.cpu_count() or 1) // jobs))}  # XLA's threads
    words = [sys.executable, str(ROOT / "train.py"), *task.words()]
    environment = os.environ | (share if jobs > 1 else {})
    task.folder.mkdir(parents=True, exist_ok=True)
    with open(task.folder / "train.log", "ab") as log:
        # In a session of its own, since a second Ctrl-C would end it unsaved.
        return Popen(words, stdin=DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True)


def last_line(task: Task) -> str:
    return (task.folder / "train.log").read_text(errors="replace").strip().rpartition("\n")[2]


def result_of(task: Task, status: int) -> dict | None:
    """Return the result of a run that has ended or diverged; None for a crash."""
    found = re.match(r"error: iter (\d+): ", last_line(task)) if status == 2 else None
    if status and not found:
        return None
    diverged = int(found[1]) if found else None
    # A damaged line is an error: without it, an earlier evaluation would pass for the last.
    records = [json.loads(line) for line in (task.folder / "metrics.jsonl").read_text().splitlines()]
    losses = [(x["iter"], x["train/loss"], x["val/loss"]) for x in records if "val/loss" in x]
    evaluations = [[step, round(train, 5), round(val, 5)] for step, train, val in losses]
    ms = sum(x.get("ms", 0.0) for x in records)  # a step's, on average since the last record
    return {
        "seed": task.seed,
        "val": evaluations[-1][2] if diverged is None else None,
        "diverged": diverged,
        "steps": task.options.get("max_iters", Options.max_iters) if diverged is None else diverged,
        "seconds": round(KEEPING["log_interval"] * ms / 1e3, 1),
        "evaluations": evaluations,
        "data": data_mark(task.dataset),
        **machine(),
    }
