"""Train with a version's own train.py: to the end, or shortly, for the time of a step or what options mean.

A killed run goes on from its last checkpoint. A run's folder is named by its options, its code and its seed,
and keeps its result: what experiments share is trained once.
"""

import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, CalledProcessError, Popen, check_output
from tempfile import TemporaryDirectory
from typing import Any, Literal

from scipy.stats import sem

from common.devices import count_cpus
from common.errors import UserError
from common.files import read_json, refusing, write_whole
from data.dataset import DATA, dataset_dir
from experiments.record import Experiment, Result, Value, Variant, data_mark, machine, read_result
from experiments.snapshot import Snapshot
from experiments.statistics import critical
from runs.checkpoint import checkpoint_folders
from runs.metrics import RECORD, read_records
from runs.process import SIGHUP

Equal = Literal["steps", "tokens", "time"]
# These do not change what a run trains.
KEEPING = {"out_dir": "", "keep_checkpoints": 1, "log_interval": 10, "wandb_log": False}
TURNS, SECONDS = 5, 5.0  # how often a step of each set is timed, and how long
WARM_UP, SEEN = 3, 10  # steps that are not timed, and those whose losses are compared


def start(code: Snapshot, words: list[str], folder: Path, dataset: str = "", **variables) -> Popen:
    """Start a program of this code, which finds our data sets. Its output is train.log in the folder.

    SIGTERM and SIGHUP then raise KeyboardInterrupt, as Ctrl-C does: who started it can end it.
    """
    for number in (signal.SIGTERM, SIGHUP):
        if number and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    data = dataset_dir(dataset)
    named = data.parent if data.name == dataset else os.environ.get("NANOJAXGPT_DATA") or DATA
    own = {"NANOJAXGPT_DATA": str(named), "PYTHONUNBUFFERED": "1"}  # so that an error is the last line
    env = os.environ | own | variables
    command = [sys.executable, str(code.folder / words[0]), *words[1:]]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "train.log", "ab") as log:
        # In a session of its own, since a second Ctrl-C would end it unsaved.
        return Popen(command, env=env, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True)


def last_line(folder: Path) -> str:
    return (folder / "train.log").read_text(errors="replace").strip().rpartition("\n")[2]


def diverged_at(folder: Path) -> int | None:
    """Return the iteration at which a run in this folder has diverged, by its last line."""
    found = re.match(r"error: iter (\d+): ", last_line(folder))
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Task:
    """A run to train."""

    label: str
    variant: Variant
    seed: int
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / "runs" / f"{self.variant.mark}.seed-{self.seed}"

    @property
    def kept(self) -> Path:
        return self.folder / "result.json"

    def words(self) -> list[str]:
        """Return train.py's command line. A run that began with other weights goes on with its own."""
        values = self.variant.options | KEEPING | {"seed": self.seed, "out_dir": str(self.folder)}
        values["always_save_checkpoint"] = True  # evaluate.py needs the last
        if "init_from" not in values or checkpoint_folders(str(self.folder)):
            values["init_from"] = "auto"
        return ["train.py", *(f"--{name}={value}" for name, value in values.items())]

    def start(self, words: list[str], jobs: int = 1) -> Popen:
        threads = {"PJRT_NPROC": str(max(1, count_cpus() // jobs))} if jobs > 1 else {}  # XLA's
        return start(self.variant.code, words, self.folder, self.variant.option("dataset"), **threads)

    def finish(self, words: list[str]) -> None:
        """Run a program of this code to its end. Raises UserError if it fails."""
        if self.start(words).wait():
            raise UserError(f"{self}: {last_line(self.folder)}")

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"


def run(experiment: Experiment, labels: list[str], jobs: int, out: Path) -> int:
    """Train what these sets lack, and show no loss, lest one stops when it suits. Return how many failed."""

    def keep(task: Task, result: Result, done: str = "ended") -> None:
        if not result.has(experiment.metric):
            result = evaluated(task, result)
        write_whole(task.kept, result.to_json())
        experiment.record().add(task.label, result)
        print(f"{done} {task}", file=sys.stderr, flush=True)

    record = experiment.record()
    due = [
        Task(label, variant, seed, out)
        for seed in range(1, experiment.seeds + 1)
        for label, variant in experiment.sets.items()
        if label in labels and seed not in record.losses(label)
    ]
    for entry in record.sets.values() if due else ():
        for old in entry.runs:
            old.check(experiment.path, str(entry.option("dataset")))
    for task in due:
        if task.kept.exists():  # of another experiment
            result = read_result(task.kept)
            result.check(task.kept, task.variant.option("dataset"))
            keep(task, result, "reused")
    return train_all([task for task in due if not task.kept.exists()], jobs, keep)


def train_all(due: list[Task], jobs: int, keep: Callable[[Task, Result], None]) -> int:
    """Train runs, `jobs` at once, and call `keep` with each that has a result. Return how many failed.

    Ctrl-C, SIGTERM and SIGHUP stop the runs as well, which save checkpoints.
    """
    waiting, running, failed = deque(due), [], 0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.popleft()
                print(f"training {task}: {task.folder}", file=sys.stderr, flush=True)
                running.append((task, task.start(task.words(), jobs)))
            time.sleep(0.2)
            for task, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((task, process))
                if result := result_of(task, process.returncode):
                    keep(task, result)
                else:
                    failed += 1
                    print(f"{task} failed, to be tried again: {last_line(task.folder)}", file=sys.stderr)
    finally:
        if running:
            print("stopped: the same command goes on", file=sys.stderr)
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.wait()
    return failed


def result_of(task: Task, status: int) -> Result | None:
    """Return the result of a run that has ended or diverged; None for a crash. Raises UserError."""
    diverged, last = diverged_at(task.folder) if status else None, task.variant.option("max_iters")
    if status and (status != 2 or diverged is None):
        return None
    path = task.folder / "metrics.jsonl"
    # A damaged line is an error: without it, an earlier evaluation would pass for the last.
    with refusing(f"{path}: damaged", "move the folder away to train it again", Exception):
        records = [RECORD.validate_json(line) for line in path.read_bytes().splitlines()]
        losses = {x["iter"]: (x["train/loss"], x["val/loss"]) for x in records if "val/loss" in x}
        values: dict[str, Any] = {
            "seed": task.seed,
            "val": round(losses[last][1], 5) if diverged is None else None,
            "diverged": diverged,
            "steps": last if diverged is None else diverged,
            "seconds": round(sum(x.get("ms", 0.0) for x in records) / 100, 1),  # of each tenth step, in ms
            "evaluations": [(i, round(train, 5), round(val, 5)) for i, (train, val) in losses.items()],
            "data": data_mark(task.variant.option("dataset")),
        }
        return Result(**values, **machine())


def evaluated(task: Task, result: Result) -> Result:
    """Evaluate a trained run on all of the validation text, by its own evaluate.py. Raises UserError."""
    path = task.folder / "evaluation.json"
    task.finish(["evaluate.py", f"--out_dir={task.folder}", f"--json={path}"])
    with refusing(f"{path}: cannot be read", "give the command again", Exception):
        found = read_json(path, dict[str, Value])
        return replace(result, loss=found["loss"], bits_per_byte=found["bits_per_byte"])


# Short runs


def train_until(enough: Callable[[], bool], code: Snapshot, words: list[str], folder: Path, data: str = ""):
    """Train until there is enough to see in the folder, or the run diverges. Raises UserError for a crash."""
    process = start(code, ["train.py", *words, f"--out_dir={folder}", "--wandb_log=False"], folder, data)
    try:
        while not enough():
            if process.poll() is not None:
                if diverged_at(folder) is None:
                    raise UserError(f"{code.name}: {last_line(folder).removeprefix('error: ')}")
                return
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()


def options_of(code: Snapshot, words: list[str], dataset: str = "") -> dict[str, Value]:
    """Return all options, as these words mean them to this code. Raises UserError."""
    with TemporaryDirectory() as temporary:
        path = Path(temporary, "options.json")
        train_until(path.exists, code, words, path.parent, dataset)
        with refusing(f"{code.name}: its options cannot be read", "compare another commit", ValueError):
            return read_json(path, dict[str, Value])


def defaults_of(code: Snapshot) -> dict[str, Value]:
    """Return the defaults of this code's options; none of code that has them elsewhere."""
    script = "import json; from config.options import Options; print(json.dumps(vars(Options())))"
    try:
        return json.loads(check_output([sys.executable, "-c", script], cwd=code.folder, stderr=DEVNULL))
    except (CalledProcessError, ValueError):
        return {}


def short_run(variant: Variant, **rates: float) -> tuple[float, list[float]]:
    """Return the milliseconds of a step, and the losses of the first ones; none of those if it diverges."""
    never = 10**5  # steps: a kill that leaves it alone does not leave it for ever
    changes = {"max_iters": never, "eval_interval": never, "eval_iters": 1, "log_interval": 1} | rates
    words = [f"--{name}={value}" for name, value in (variant.options | changes).items()]
    steps: list[dict[str, float]] = []
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def enough() -> bool:
            steps[:] = [record for record in read_records(folder / "metrics.jsonl") if "ms" in record]
            return len(steps) >= SEEN and sum(step["ms"] for step in steps[WARM_UP:]) >= 1e3 * SECONDS

        train_until(enough, variant.code, words, folder, variant.option("dataset"))
        if diverged_at(folder) is not None:
            if rates:
                raise UserError(f"{variant.code.name}: {last_line(folder).removeprefix('error: ')}")
            # Its steps take as long with a rate that changes nothing.
            return short_run(variant, learning_rate=1e-9, min_lr=0.0)[0], []
    return median(step["ms"] for step in steps[WARM_UP:]), [step["loss"] for step in steps[:SEEN]]


def time_steps(experiment: Experiment) -> None:
    """Time a step of each set that the record lacks, and say how sure its ratio to the base's is.

    What was timed stays: another number of steps would begin its runs anew. By turns, what else runs slows
    all alike. Other code whose losses are the base's, with the same options, is named on stderr. Raises
    UserError.
    """
    record, sets, about = experiment.record(), experiment.sets, machine()
    base, *others = sets
    if ms := record.sets[base].ms:
        others = [label for label in others if not record.sets[label].ms]
        if not others:
            return
    print("timing a step of each, by turns", file=sys.stderr, flush=True)
    turns = [{label: short_run(sets[label]) for label in (base, *others)} for _ in range(TURNS)]
    timed = f"on {about['date']} on {about['cpu']}, {about['versions'].partition(', equinox')[0]}"
    middle = ms or median(turn[base][0] for turn in turns)
    for label in others if ms else sets:
        x = sets[label]
        ratios = [turn[label][0] / turn[base][0] for turn in turns]  # of neighbours in time
        half = critical(TURNS) * float(sem(ratios))
        record.set(label, ms=round(middle * median(ratios), 2), ratio_half=round(half, 3), timed=timed)
        alike = x.options == sets[base].options and turns[0][label][1] == turns[0][base][1] != []
        if alike and x.code.files != sets[base].code.files:
            print(f"{label}: {SEEN} steps change nothing: does fast.py override it?", file=sys.stderr)


def at_equal(experiment: Experiment, equal: Equal) -> Experiment:
    """Return the experiment with as many steps of each set as take the base's tokens, or time."""
    if equal == "steps":
        return experiment
    time_steps(experiment)
    times, sets = experiment.record().sets, {}
    costs = {label: x.sizes()["tokens a step"] for label, x in experiment.sets.items()}
    base, *_ = costs
    if equal == "time":  # only time that is surely saved buys steps: noise of the clock is not to be a gain
        found = {label: (times[label].ms or 0.0, times[label].ratio_half or 0.0) for label in costs}
        most, _ = found[base]
        costs = {label: max(ms, min(most, ms + half * most)) for label, (ms, half) in found.items()}
    for label, x in experiment.sets.items():
        steps = round(experiment.sets[base].option("max_iters") * costs[base] / costs[label])
        decay = round(steps * x.option("lr_decay_iters") / x.option("max_iters"))
        schedule = {"max_iters": steps, "lr_decay_iters": decay, "eval_interval": -(-steps // 4)}
        sets[label] = replace(x, options=x.options | schedule)
    path = experiment.path.with_stem(f"{experiment.path.stem}_equal_{equal}")
    command = f"{experiment.command} --equal={equal}"
    made = replace(experiment, path=path, command=command, sets=sets, equal=equal)
    for label in sets:
        made.record().set(
            label, ms=times[label].ms, ratio_half=times[label].ratio_half, timed=times[label].timed
        )
    return made
