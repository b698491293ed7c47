"""Train an experiment's runs: some option sets, each with several seeds, and put the results into one file.

    python -m experiments.precision                 train what is missing, then write the table and the plot
    python -m experiments.precision --seeds=7       two seeds more than its five
    python -m experiments.precision --time          time each set's step, by turns: on a quiet machine
    python -m experiments.precision --equal_time    then: each with as many steps as take the first set's time
    modal run app.py::experiment --run-on-remote true precision     on rented machines: docs/cloud.md

train.py makes each run, in a folder below `out-experiments/<experiment>/`, and a killed run goes on from its
last checkpoint. `experiments/results/<experiment>.json` keeps the results: a run in there is not trained
again. Two runs of a small model at once, on a core each, take less time than one after the other on both.
"""

import os
import re
import shutil
import signal
import sys
import time
import zlib
from argparse import ArgumentTypeError, Namespace
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, Popen

from config.command_line import ScriptParser, UserError, command
from config.files import first_line
from config.options import Options
from data.dataset import prepare_if_missing
from experiments.record import KEEPING, RESULTS, ROOT, Experiment, Record, data_mark, machine
from experiments.report import write_report
from runs.metrics import parse_record, read_lines

LOOK = 0.2  # seconds between two looks at the runs that train


@dataclass(frozen=True)
class Task:
    """A run that is to be trained."""

    experiment: str
    label: str
    options: dict  # that differ from train.py's defaults, without the seed
    seed: int
    folder: Path

    def words(self) -> list[str]:
        """Return the command line of the run."""
        values = self.options | KEEPING | {"seed": self.seed, "out_dir": str(self.folder)}
        return [f"--{name}={value}" for name, value in values.items()]

    @property
    def dataset(self) -> str:
        return self.options.get("dataset", Options.dataset)

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"


# Trains runs, some at once, and gives each result to a function; returns how many runs failed.
Train = Callable[[list[Task], int, Callable[[Task, dict], None]], int]


def main(experiments: list[Experiment], about: str | None) -> None:
    """Run a program of experiments as its command line says."""
    command(lambda argv: run(experiments, about, argv))


def run(
    experiments: list[Experiment],
    about: str | None,
    argv: list[str],
    results: Path = RESULTS,
    train: Train | None = None,
) -> int:
    """Do what the command line asks for. Return 1 if a run failed, or else 0. Raises UserError.

    Runs train on this machine, or where `train` trains them.
    """
    asked = parse(argv, about)
    if asked.equal_time:
        experiments = [at_equal_time(experiment, asked.only, results) for experiment in experiments]
    records = {x.name: Record(x, results) for x in experiments if labels(x, asked.only)}
    if not records:
        names = "; ".join(f"{x.name}: {label}" for x in experiments for label in labels(x))
        raise UserError(f"--only={asked.only}: no option set has this in its name: {names}")
    if asked.list:
        for record in records.values():
            print_list(record, asked)
        return 0
    due = [task for record in records.values() for task in tasks(record, asked)]

    def keep(task: Task, result: dict) -> None:
        record = Record(records[task.experiment].experiment, results)  # anew: it may have been written to
        record.check_data(task.dataset, result.get("data"))  # a rented machine's are seen only now
        record.add(task.label, result)
        val, diverged = result["val"], result["diverged"]
        print(f"{task}: {f'diverged at {diverged}' if val is None else f'val loss {val:.4f}'}", flush=True)

    failed = 0
    try:
        if asked.time:
            from experiments.timing import time_steps  # here: a rented machine lacks it

            for record in records.values():
                time_steps(record, labels(record.experiment, asked.only))
        elif not asked.draw:
            if train is None:
                for name, dataset in sorted({(task.experiment, task.dataset) for task in due}):
                    prepare_if_missing(dataset)
                    records[name].check_data(dataset, data_mark(dataset))
            failed = (train or train_all)(due, asked.jobs, keep)
    finally:  # whatever stopped it, the tables have what is done
        for before in records.values():
            record = Record(before.experiment, results)
            if train is None or record.sets != before.sets:  # a launch may only print its cost
                write_report(record)
    return 1 if failed else 0


def parse(argv: list[str], about: str | None) -> Namespace:
    """Read the command line of an experiment. Raises UserError."""
    parser = ScriptParser(about)
    parser.add_argument("--seeds", type=count, metavar="N", help="seeds of each option set, from 1 on")
    parser.add_argument("--jobs", type=count, default=1, metavar="N", help="runs at once (default: 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only option sets with this in their name")
    parser.add_argument("--out", default="out-experiments", metavar="FOLDER", help="where the runs lie")
    parser.add_argument("--list", action="store_true", help="print what is done and missing")
    parser.add_argument("--draw", action="store_true", help="write table and plot, and train nothing")
    parser.add_argument("--time", action="store_true", help="time a step of each option set, by turns")
    parser.add_argument("--equal_time", action="store_true", help="steps that take the first's time")
    return parser.parse(argv)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected an integer, 1 or more, not {text}")
    return int(text)


# The list of tasks


def labels(experiment: Experiment, only: str = "") -> list[str]:
    """Return the option sets that are asked for, of those that can be trained."""
    runnable = [label for label in experiment.sets if label not in experiment.removed]
    return [label for label in runnable if only in f"{experiment.name}: {label}"]


def tasks(record: Record, asked: Namespace) -> list[Task]:
    """Return the runs that have no result yet: the first seed of each set, then the second of each set."""
    found, name = [], record.experiment.name
    for seed in range(1, (asked.seeds or record.experiment.seeds) + 1):
        for label in labels(record.experiment, asked.only):
            options = record.options[label]
            if seed not in record.losses(label):
                slug = re.sub("[^A-Za-z0-9.]+", "-", label).strip("-")
                mark = zlib.crc32(repr(options).encode())  # other options never resume the same folder
                folder = Path(asked.out) / name / f"{slug}.{mark:08x}.seed-{seed}"
                found.append(Task(name, label, options, seed, folder))
    return found


def print_list(record: Record, asked: Namespace) -> None:
    """Print how many runs each option set has that is asked for, and which are missing."""
    print(f"{record.experiment.name}: {record.experiment.question}")
    due = tasks(record, asked)
    for label in labels(record.experiment, asked.only):
        seeds = ", ".join(str(task.seed) for task in due if task.label == label)
        missing = f", missing: seed {seeds}" if seeds else ""
        print(f"  {label:36} {len(record.runs(label))} done{missing}")


def at_equal_time(experiment: Experiment, only: str, results: Path) -> Experiment:
    """Return the experiment with as many steps for each set as take the time of the first set's.

    Raises UserError unless `--time` has measured all, if `only` asks for any of them.
    """
    renamed = replace(experiment, name=f"{experiment.name}_equal_time")
    if not labels(renamed, only):
        return renamed
    record = Record(experiment, results)
    times = {label: record.entry(label).get("ms") for label in experiment.sets}
    if untimed := [label for label in labels(experiment) if times[label] is None]:
        names = "; ".join(untimed)
        raise UserError(f"--equal_time: {experiment.name}: no step time of {names}: run it with --time first")
    sets, first = {}, next(iter(times.values()))
    for label, ms in times.items():
        if ms is not None:  # a set that was removed may have none
            steps = round(record.options[label]["max_iters"] * first / ms)
            changes = {"max_iters": steps, "lr_decay_iters": steps, "eval_interval": -(-steps // 4)}
            sets[label] = experiment.sets[label] | changes
    return replace(renamed, question=f"{experiment.question} In equal time.", sets=sets)


# Training


def train_all(due: list[Task], jobs: int, ended: Callable[[Task, dict], None]) -> int:
    """Train runs, `jobs` at once, and give each result to `ended`. Name those that failed; return how many.

    When this is stopped, by Ctrl-C or SIGTERM, the runs save checkpoints and end as well.
    """
    waiting, running, failed = deque(due), {}, []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.popleft()
                print(f"training {task}: {task.folder}", flush=True)
                running[task.folder] = task, start(task, jobs)
            time.sleep(LOOK)
            for folder, (task, process) in list(running.items()):
                if (status := process.poll()) is None:
                    continue
                del running[folder]
                if result := result_of(task, status):
                    ended(task, result)
                    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
                else:
                    failed.append(task)
                    print(f"{task}: failed with status {status}: {last_line(folder)}", file=sys.stderr)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()
        signal.signal(signal.SIGTERM, before)
    if failed:
        print(f"failed: {'; '.join(map(str, failed))}; the same command tries these again", file=sys.stderr)
    return len(failed)


def start(task: Task, jobs: int) -> Popen:
    """Start a run in a process of its own, whose output goes to train.log in its folder."""
    env = dict(os.environ)
    if jobs > 1:  # XLA's name for how many threads it computes with
        env["PJRT_NPROC"] = str(max(1, (os.cpu_count() or 1) // jobs))
    words = [sys.executable, str(ROOT / "train.py"), *task.words()]
    try:
        task.folder.mkdir(parents=True, exist_ok=True)
        with open(task.folder / "train.log", "ab") as log:
            # A session of its own: Ctrl-C reaches it once, from train_all. A second one would end it unsaved.
            return Popen(words, stdin=DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)
    except OSError as error:
        reason = first_line(error)
        raise UserError(f"{task.folder}: cannot be written ({reason}): choose another --out") from None


def last_line(folder: Path) -> str:
    """Return the last line that a run has printed."""
    lines = [line for line in read_lines(folder / "train.log") if line.strip()]
    return lines[-1].decode(errors="replace") if lines else "it printed nothing"


def result_of(task: Task, status: int) -> dict | None:
    """Return the result of a run that has ended, or diverged; None if it did neither."""
    records = [found for line in read_lines(task.folder / "metrics.jsonl") if (found := parse_record(line))]
    evaluations = [
        [found["iter"], round(found["train/loss"], 5), round(found["val/loss"], 5)]
        for found in records
        if "val/loss" in found
    ]
    diverged = re.match(r"error: iter (\d+): ", last_line(task.folder)) if status == 2 else None
    last = task.options.get("max_iters", Options.max_iters)
    ended = status == 0 and bool(evaluations) and evaluations[-1][0] == last
    if not (ended or diverged):
        return None
    seconds, done = 0.0, 0
    for found in records:
        if "ms" in found:  # of a step, on average over the steps since the record before
            seconds += (found["iter"] + 1 - done) * found["ms"] / 1e3
            done = found["iter"] + 1
    return {
        "seed": task.seed,
        "val": evaluations[-1][2] if ended else None,
        "diverged": int(diverged[1]) if diverged else None,
        "steps": int(diverged[1]) if diverged else last,
        "seconds": round(seconds, 1),
        "evaluations": evaluations,
        "data": data_mark(task.dataset),
        **machine(),
    }
