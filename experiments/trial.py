"""Short runs of a version's own train.py: what options its words mean, and how long a step takes."""

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory

from scipy.stats import sem

from common.command_line import INT32
from common.errors import UserError
from common.files import read_json, refusing
from data.dataset import DATA, dataset_dir
from experiments.record import Value, Variant
from experiments.snapshot import Snapshot
from experiments.statistics import critical
from runs.metrics import read_records

TURNS, SECONDS = 5, 5.0  # how often a step of each set is timed, and how long
WARM_UP, SEEN = 3, 10  # steps that are not timed, and those whose losses are compared


def start(code: Snapshot, words: list[str], folder: Path, dataset: str = "", **variables) -> Popen:
    """Start a program of this code, which finds our data sets. Its output is train.log in the folder."""
    data = dataset_dir(dataset)
    named = data.parent if data.name == dataset else os.environ.get("NANOJAXGPT_DATA", DATA)
    env = os.environ | {"NANOJAXGPT_DATA": str(named)} | variables
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


def options_of(code: Snapshot, words: list[str]) -> dict[str, Value]:
    """Return all options, as these words mean them to this code. Raises UserError."""
    with TemporaryDirectory() as temporary:
        path = Path(temporary, "options.json")
        train_until(path.exists, code, words, path.parent)
        with refusing(f"{code.name}: its options cannot be read", "compare another commit", ValueError):
            return read_json(path, dict[str, Value])


def short_run(variant: Variant, **rates: float) -> tuple[float, list[float]]:
    """Return the milliseconds of a step, and the losses of the first ones; none of those if it diverges."""
    never = INT32 - 1
    changes = {"max_iters": never, "eval_interval": never, "eval_iters": 1, "log_interval": 1} | rates
    words = [f"--{name}={value}" for name, value in (variant.options | changes).items()]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def steps() -> list[dict[str, float]]:
            return [record for record in read_records(folder / "metrics.jsonl") if "ms" in record]

        def enough() -> bool:
            times = [step["ms"] for step in steps()]
            return len(times) >= SEEN and sum(times[WARM_UP:]) >= 1e3 * SECONDS

        train_until(enough, variant.code, words, folder, variant.option("dataset"))
        if diverged_at(folder) is not None:  # its steps take as long with a rate that changes nothing
            return short_run(variant, learning_rate=1e-9, min_lr=0.0)[0], []
        found = steps()
    return median(step["ms"] for step in found[WARM_UP:]), [step["loss"] for step in found[:SEEN]]


def time_by_turns(sets: dict[str, Variant]) -> dict[str, tuple[float, float]]:
    """Return the milliseconds of a step of each set, and half the 95% interval of their ratio to the base's.

    By turns, what else runs slows all alike. Other code whose losses are the base's, with the same options,
    is named on stderr. Raises UserError.
    """
    base, *others = sets
    turns = [{label: short_run(x) for label, x in sets.items()} for _ in range(TURNS)]
    for label in others:
        ours, theirs = sets[label], sets[base]
        alike = ours.options == theirs.options and turns[0][label][1] == turns[0][base][1] != []
        if alike and ours.code.files != theirs.code.files:
            print(f"{label}: {SEEN} steps change nothing: does fast.py override it?", file=sys.stderr)
    middle = median(turn[base][0] for turn in turns)
    ratios = {x: [turn[x][0] / turn[base][0] for turn in turns] for x in sets}  # of neighbours in time
    return {x: (middle * median(found), critical(TURNS) * float(sem(found))) for x, found in ratios.items()}
