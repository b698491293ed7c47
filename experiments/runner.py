"""Train an experiment's runs: some option sets, each with several seeds, and put the results into one file.

    python -m experiments.precision                 train what is missing, then write the table and the plot
    python -m experiments.precision --list          what is done and what is missing
    python -m experiments.precision --draw          the table and the plot of what is done; nothing is trained
    python -m experiments.precision --seeds=7       two seeds more than its five
    python -m experiments.precision --jobs=2        two runs at once, on half of the cores each
    python -m experiments.precision --only=float32  only the option sets whose name has this in it
    python -m experiments.precision --time          time each set's step, by turns: on a quiet machine
    python -m experiments.precision --equal_time    then: each with as many steps as take the first set's time
    modal run app.py::experiment --run-on-remote true precision     on rented machines: docs/cloud.md

A run is an ordinary one of train.py, in a folder of its own below `out-experiments/<experiment>/`. One that
was killed goes on from its last checkpoint. Its result is kept in `experiments/results/<experiment>.json`,
and a run in there is not trained again, so that whoever has the repository can draw without training. To try
something, change a line of an experiment and run it again: what that line does not touch is still there.

Small runs waste cores: two at once of one core each take 0.6 of the processor's time that one after the other
on both do (600 steps of the CPU Shakespeare run: 45 s for 72).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from argparse import ArgumentTypeError
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from config.command_line import ScriptParser, UserError, command
from config.files import first_line
from config.options import Options
from data.registry import prepare_if_missing
from experiments.record import (
    KEEPING,
    ROOT,
    Experiment,
    Record,
    check_data,
    data_mark,
    machine,
    read_record,
    write_record,
)
from experiments.report import write_report
from runs.metrics import parse_record, read_lines

RESULTS = ROOT / "experiments" / "results"
LOOK = 0.2  # seconds between two looks at the runs that train
POINTS = 50  # of the training loss that a result keeps


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

    def ends_at(self) -> int:
        return self.options.get("max_iters", Options.max_iters)

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"


def main(experiments: list[Experiment], about: str | None) -> None:
    """Run a program of experiments as its command line says."""
    command(lambda argv: run(experiments, about, argv))


# Trains runs, some at once, and gives each result to a function; returns how many runs failed.
Train = Callable[[list[Task], int, Callable[[Task, dict], None]], int]


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
    chosen = [experiment for experiment in experiments if labels(experiment, asked.only)]
    if not chosen:
        names = "; ".join(f"{x.name}: {label}" for x in experiments for label in labels(x, None))
        raise UserError(f"--only={asked.only}: no option set has this in its name: {names}")
    due, before = [], {}
    for experiment in chosen:
        record = before[experiment.name] = read_record(results / f"{experiment.name}.json")
        due += (missing := tasks(experiment, record, Path(asked.out), asked.seeds, asked.only))
        if asked.list:
            print_list(experiment, record, missing, asked.only)
    if asked.list:
        return 0
    failed = 0
    try:
        if asked.time:
            time_all(chosen, asked.only, results)
        elif not asked.draw:
            if train is None:
                prepare_data(due)
                check_all_data(due, results)
            failed = (train or train_all)(due, asked.jobs, partial(keep, results))
    finally:  # whatever stopped it, the tables have what is done
        for experiment in chosen:
            record = read_record(results / f"{experiment.name}.json")
            if train is None or record != before[experiment.name]:  # a launch may only tell its cost
                write_report(experiment, record, results)
    return 1 if failed else 0


def parse(argv: list[str], about: str | None):
    """Read the command line of an experiment. Raises UserError."""
    parser = ScriptParser(about)
    parser.add_argument("--seeds", type=count, metavar="N", help="seeds of each option set, from 1 on")
    parser.add_argument("--jobs", type=count, default=1, metavar="N", help="runs at once (default: 1)")
    parser.add_argument("--only", metavar="TEXT", help="only the option sets whose name has this in it")
    parser.add_argument("--out", default="out-experiments", metavar="FOLDER", help="where the runs lie")
    parser.add_argument("--list", action="store_true", help="say what is done and missing")
    parser.add_argument("--draw", action="store_true", help="write table and plot, and train nothing")
    parser.add_argument("--time", action="store_true", help="time a step of each option set, by turns")
    parser.add_argument("--equal_time", action="store_true", help="steps that take the first's time")
    return parser.parse(argv)


def count(text: str) -> int:
    """Return an option's number. Raises ArgumentTypeError unless it is 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected an integer, 1 or more, not {text}")
    return int(text)


# The list of tasks


def labels(experiment: Experiment, only: str | None) -> list[str]:
    """Return the option sets that are asked for, of those that can be trained."""
    runnable = [label for label in experiment.sets if label not in experiment.removed]
    return [label for label in runnable if (only or "") in f"{experiment.name}: {label}"]


def tasks(
    experiment: Experiment, record: Record, out: Path, seeds: int | None = None, only: str | None = None
) -> list[Task]:
    """Return the runs that have no result yet: the first seed of each set, then the second of each set."""
    found = []
    for seed in range(1, (seeds or experiment.seeds) + 1):
        for label in labels(experiment, only):
            options = experiment.options(label)
            if not record.has(label, options, seed):
                slug = re.sub("[^A-Za-z0-9.]+", "-", label).strip("-")
                mark = zlib.crc32(repr(options).encode())  # other options never resume the same folder
                folder = out / experiment.name / f"{slug}.{mark:08x}.seed-{seed}"
                found.append(Task(experiment.name, label, options, seed, folder))
    return found


def print_list(experiment: Experiment, record: Record, due: list[Task], only: str | None) -> None:
    """Print how many runs each option set has that is asked for, and which are missing."""
    print(f"{experiment.name}: {experiment.question}")
    for label in labels(experiment, only):
        missing = [str(task.seed) for task in due if task.label == label]
        done = len(record.runs(label, experiment.options(label)))
        print(f"  {label:36} {done} done" + (f", missing: seed {', '.join(missing)}" if missing else ""))


def at_equal_time(experiment: Experiment, only: str | None, results: Path) -> Experiment:
    """Return the experiment with as many steps for each set as take the time of the first set's.

    Raises UserError unless `--time` has measured all, if `only` asks for any of them.
    """
    renamed = replace(experiment, name=f"{experiment.name}_equal_time")
    if not labels(renamed, only):
        return renamed
    record = read_record(results / f"{experiment.name}.json")
    times = {label: record.ms(label, experiment.options(label)) for label in experiment.sets}
    if untimed := [label for label in labels(experiment, None) if times[label] is None]:
        raise UserError(
            f"--equal_time: {experiment.name}: no step time of {'; '.join(untimed)}: run it with --time first"
        )
    times = {label: ms for label, ms in times.items() if ms is not None}
    first = next(iter(times.values()))
    sets = {}
    for label, ms in times.items():
        own, options = experiment.sets[label], experiment.options(label)
        steps = round(options["max_iters"] * first / ms)
        sets[label] = own | {"max_iters": steps, "lr_decay_iters": steps, "eval_interval": -(-steps // 4)}
    return replace(renamed, question=f"{experiment.question} In equal time.", sets=sets)


def time_all(experiments: list[Experiment], only: str | None, results: Path) -> None:
    """Time a step of each option set that is asked for, and keep it with the results."""
    from experiments.timing import time_steps  # here, because nothing else needs JAX's backend

    for experiment in experiments:
        path = results / f"{experiment.name}.json"
        write_record(path, time_steps(experiment, read_record(path), labels(experiment, only)))


# Training


def prepare_data(due: list[Task]) -> None:
    """Prepare the data sets that runs need, once, before several want to. Raises UserError."""
    for dataset in sorted({task.dataset for task in due}):
        prepare_if_missing(dataset)


def check_all_data(due: list[Task], results: Path) -> None:
    """Raise UserError if the data here are not those that the experiments' runs have read before."""
    for experiment, dataset in sorted({(task.experiment, task.dataset) for task in due}):
        check_data(results / f"{experiment}.json", dataset, data_mark(dataset))


def train_all(due: list[Task], jobs: int, ended: Callable[[Task, dict], None]) -> int:
    """Train runs, `jobs` at once, and give each result to `ended`. Name those that failed; return how many.

    When this is stopped, by Ctrl-C or SIGTERM, the runs save checkpoints and end as well.
    """
    waiting, running, failed = deque(due), {}, []
    with sigterm_interrupts():
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
                        shutil.rmtree(task.folder / "checkpoints", ignore_errors=True)
                    else:
                        failed.append(task)
                        print(f"{task}: failed with status {status}: {last_line(folder)}", file=sys.stderr)
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.wait()
    if failed:
        print(f"failed: {'; '.join(map(str, failed))}; the same command tries these again", file=sys.stderr)
    return len(failed)


def start(task: Task, jobs: int) -> subprocess.Popen:
    """Start a run in a process of its own, whose output goes to train.log in its folder."""
    environment = dict(os.environ)
    if jobs > 1:  # XLA's name for how many threads it computes with
        environment["PJRT_NPROC"] = str(max(1, (os.cpu_count() or 1) // jobs))
    try:
        task.folder.mkdir(parents=True, exist_ok=True)
        with open(task.folder / "train.log", "ab") as log:
            words = [sys.executable, str(ROOT / "train.py"), *task.words()]
            # A session of its own: Ctrl-C reaches it once, from train_all. A second one would end it unsaved.
            return subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        reason = first_line(error)
        raise UserError(f"{task.folder}: cannot be written ({reason}): choose another --out") from None


@contextmanager
def sigterm_interrupts():
    """Within, SIGTERM does what Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_line(folder: Path) -> str:
    """Return the last line that a run has printed."""
    lines = [line for line in read_lines(folder / "train.log") if line.strip()]
    return lines[-1].decode(errors="replace") if lines else "it printed nothing"


# Results


def result_of(task: Task, status: int) -> dict | None:
    """Return the result of a run that has ended, or diverged; None if it did neither."""
    records = [found for line in read_lines(task.folder / "metrics.jsonl") if (found := parse_record(line))]
    evaluations = [
        [found["iter"], round(found["train/loss"], 5), round(found["val/loss"], 5)]
        for found in records
        if "val/loss" in found
    ]
    diverged = re.match(r"error: iter (\d+): ", last_line(task.folder)) if status == 2 else None
    ended = status == 0 and bool(evaluations) and evaluations[-1][0] == task.ends_at()
    if not (ended or diverged):
        return None
    steps = [found for found in records if "ms" in found]
    since = [0, *(found["iter"] + 1 for found in steps)]  # a record is of the steps since the one before
    seconds = sum((b - a) * found["ms"] for a, b, found in zip(since, since[1:], steps, strict=False)) / 1e3
    return {
        "seed": task.seed,
        "val": evaluations[-1][2] if ended else None,
        "best": min((val for _, _, val in evaluations), default=None),
        "diverged": int(diverged[1]) if diverged else None,
        "steps": evaluations[-1][0] if ended else steps[-1]["iter"] if steps else 0,
        "seconds": round(seconds, 1),
        "evaluations": evaluations,
        "losses": thinned(steps),
        "data": data_mark(task.dataset),
        **machine(),
    }


def thinned(steps: list[dict]) -> list[list[float]]:
    """Return the training loss at about POINTS iterations, each the mean of the records up to there."""
    size = -(-len(steps) // POINTS)
    groups = [steps[i : i + size] for i in range(0, len(steps), size)] if steps else []
    return [[group[-1]["iter"], round(sum(s["loss"] for s in group) / len(group), 4)] for group in groups]


def keep(results: Path, task: Task, result: dict) -> None:
    """Put a result into its experiment's record, which another process may have written to meanwhile."""
    path = results / f"{task.experiment}.json"
    check_data(path, task.dataset, result.get("data"))  # those of a rented machine are seen only now
    write_record(path, read_record(path).with_run(task.label, task.options, result))
    ending = f"diverged at {result['diverged']}" if result["val"] is None else f"val loss {result['val']:.4f}"
    print(f"{task}: {ending}", flush=True)
