"""Train the runs that an experiment lacks, some at once, and keep their results.

A killed run goes on from its last checkpoint. A run's folder is named by its options, its code and its seed,
and keeps its result: what experiments share is trained once.
"""

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from common.devices import count_cpus
from common.errors import UserError
from common.files import kept, read_json, refusing, write_whole
from config.options import Options
from experiments.record import TOKENS, Experiment, Variant, check_run, data_mark, machine
from experiments.snapshot import environment
from tools.benchmarks.other_code import OtherCode, check_losses
from tools.benchmarks.variants import take_turns

Equal = Literal["steps", "tokens", "time"]
# These do not change what a run trains.
KEEPING = {"out_dir": "", "keep_checkpoints": 1, "log_interval": 10, "wandb_log": False}


@dataclass(frozen=True)
class Task:
    """A run to train."""

    label: str
    variant: Variant
    seed: int
    folder: Path

    @property
    def kept(self) -> Path:
        return self.folder / "result.json"

    def words(self) -> list[str]:
        """Return train.py's command line. A run that began with other weights goes on with its own."""
        values = self.variant.options | KEEPING | {"seed": self.seed, "out_dir": str(self.folder)}
        values["always_save_checkpoint"] = True  # evaluate.py needs the last
        if "init_from" not in values or (self.folder / "checkpoints").exists():
            values["init_from"] = "auto"
        return [f"--{name}={value}" for name, value in values.items()]

    def start(self, program: str, words: list[str], jobs: int = 1) -> subprocess.Popen:
        """Start a program of the run's code, with its output in train.log."""
        variables = environment(self.variant.option("dataset"))
        if jobs > 1:
            variables["PJRT_NPROC"] = str(max(1, count_cpus() // jobs))  # XLA's threads
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "train.log", "ab") as log:
            # In a session of its own, since a second Ctrl-C would end it unsaved.
            output: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            words = [sys.executable, str(self.variant.code.folder / program), *words]
            return subprocess.Popen(words, env=variables, start_new_session=True, **output)

    def last_line(self) -> str:
        return (self.folder / "train.log").read_text(errors="replace").strip().rpartition("\n")[2]

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"


def run(experiment: Experiment, labels: list[str], jobs: int, out: Path) -> int:
    """Train what these sets lack, and show no loss, lest one stops when it suits. Return how many failed."""

    def keep(task: Task, done: str = "ended") -> None:
        result = kept(task.kept, dict[str, Any])
        if experiment.metric not in result:
            value = bits_per_byte(task) if result["diverged"] is None else None
            write_whole(task.kept, json.dumps(result := result | {experiment.metric: value}))
        experiment.record().add(task.label, result)  # as it is by now: others may write it, too
        print(f"{done} {task}", file=sys.stderr, flush=True)

    record = experiment.record()
    due = [
        Task(label, variant, seed, out / "runs" / f"{variant.mark}.seed-{seed}")
        for seed in range(1, experiment.seeds + 1)
        for label, variant in experiment.sets.items()
        if label in labels and seed not in record.losses(label)
    ]
    for entry in record.sets.values() if due else ():
        for old in entry["runs"]:
            check_run(record.path, old, entry["options"].get("dataset", Options.dataset))
    for task in due:
        if task.kept.exists():  # of another experiment
            check_run(task.kept, kept(task.kept, dict[str, Any]), task.variant.option("dataset"))
            keep(task, "reused")
    return train_all([task for task in due if not task.kept.exists()], jobs, keep)


def train_all(due: list[Task], jobs: int, keep: Callable[[Task], None]) -> int:
    """Train runs, `jobs` at once, and call `keep` with each that has a result. Return how many failed.

    Ctrl-C and SIGTERM stop the runs as well, which save checkpoints.
    """
    waiting, running, failed = deque(due), [], 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.popleft()
                print(f"training {task}: {task.folder}", file=sys.stderr, flush=True)
                running.append((task, task.start("train.py", task.words(), jobs)))
            time.sleep(0.2)
            for task, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((task, process))
                if result := result_of(task, process.returncode):
                    write_whole(task.kept, json.dumps(result))
                    keep(task)
                else:
                    failed += 1
                    print(f"{task} failed, to be tried again: {task.last_line()}", file=sys.stderr)
    finally:
        if running:
            print("stopped: the same command goes on", file=sys.stderr)
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.wait()
    return failed


def result_of(task: Task, status: int) -> dict | None:
    """Return the result of a run that has ended or diverged; None for a crash."""
    found = re.match(r"error: iter (\d+): ", task.last_line()) if status == 2 else None
    if status and not found:
        return None
    diverged = int(found[1]) if found else None
    path = task.folder / "metrics.jsonl"
    # A damaged line is an error: without it, an earlier evaluation would pass for the last.
    with refusing(f"{path}: damaged", "move the folder away to train it again", Exception):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        losses = [(x["iter"], x["train/loss"], x["val/loss"]) for x in records if "val/loss" in x]
        evaluations = [[step, round(train, 5), round(val, 5)] for step, train, val in losses]
        ms = sum(x.get("ms", 0.0) for x in records)  # a step's, on average since the last record
        losses = {step: val for step, _, val in evaluations}
        last = losses[task.variant.option("max_iters")] if diverged is None else None
    return {
        "seed": task.seed,
        "val": last,
        "diverged": diverged,
        "steps": task.variant.option("max_iters") if diverged is None else diverged,
        "seconds": round(KEEPING["log_interval"] * ms / 1e3, 1),
        "evaluations": evaluations,
        "data": data_mark(task.variant.option("dataset")),
        **machine(),
    }


def bits_per_byte(task: Task) -> float:
    """Evaluate a trained run on all of the validation text. Raises UserError."""
    found = task.folder / "evaluation.json"
    if task.start("evaluate.py", [f"--out_dir={task.folder}", f"--json={found}"]).wait():
        raise UserError(f"{task}: {task.last_line()}")
    return read_json(found)["bits_per_byte"]


def time_steps(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the times of a step, which the record keeps. By turns, what else runs slows all alike."""
    record, sets = experiment.record(), experiment.sets
    if any("ms" not in record.sets[label] for label in sets):
        steps = []
        for label, x in sets.items():
            words = [f"--{name}={value}" for name, value in x.options.items()]
            steps.append(OtherCode(label, x.code.folder, words, environment(x.option("dataset"))))
        print("timing a step of each, by turns", file=sys.stderr, flush=True)
        try:
            if len({str(x.code.files) for x in sets.values()}) > 1:
                check_losses(steps)
            times = take_turns(steps, None)
        finally:
            for step in steps:
                step.close()
        about, (first, *_) = machine(), times.values()
        timed = f"on {about['date']} on {about['cpu']}, {about['versions'].partition(', equinox')[0]}"
        for label, found in times.items():
            ratio = median(a / b for a, b in zip(found, first, strict=True))  # of neighbours in time
            record.set(label, ms=round(1e3 * median(first) * ratio, 2), timed=timed)
    return {label: {name: record.sets[label][name] for name in ("ms", "timed")} for label in sets}


def at_equal(experiment: Experiment, equal: Equal) -> Experiment:
    """Return the experiment with as many steps of each set as take the base's tokens, or time."""
    if equal == "steps":
        return experiment
    times = time_steps(experiment)
    costs = {label: math.prod(map(x.option, TOKENS)) for label, x in experiment.sets.items()}
    if equal == "time":
        costs = {label: timed["ms"] for label, timed in times.items()}
    sets, base = {}, next(iter(costs))
    for label, x in experiment.sets.items():
        steps = round(experiment.sets[base].option("max_iters") * costs[base] / costs[label])
        decay = round(steps * x.option("lr_decay_iters") / x.option("max_iters"))
        schedule = {"max_iters": steps, "lr_decay_iters": decay, "eval_interval": -(-steps // 4)}
        sets[label] = replace(x, options=x.options | schedule)
    path = experiment.path.with_stem(f"{experiment.path.stem}_equal_{equal}")
    command = f"{experiment.command} --equal={equal}"
    made = replace(experiment, path=path, command=command, sets=sets, equal=equal)
    for label, timed in times.items():
        made.record().set(label, **timed)
    return made
