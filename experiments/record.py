"""An experiment, and the record of its runs: one JSON file, which the repository keeps.

The first result of an option set whose options have changed replaces the old ones.
"""

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from config.command_line import UserError, given
from config.files import read_json, write_whole
from config.options import Options
from data.dataset import dataset_dir
from tools.planning.speeds import describe_cpu

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
# These do not change what a run trains.
KEEPING = {"out_dir": "", "keep_checkpoints": 1, "log_interval": 10, "wandb_log": False, "init_from": "auto"}

# The CPU Shakespeare run's model, half as wide, in half the steps.
MINIATURE = dict(
    n_embd=64, max_iters=1000, lr_decay_iters=1000, warmup_iters=50, eval_interval=500, eval_iters=100
)


@dataclass(frozen=True)
class Experiment:
    """A question, and the runs that answer it."""

    name: str  # of its files in results/
    question: str
    sets: dict[str, dict[str, Any]]  # options over the config's; the first set is the base
    program: str = ""  # its module, if that has another name
    lines: dict[str, list[str]] = field(default_factory=dict)  # of the plot: option sets in order, by name
    x: str = "learning_rate"  # the option in which the sets of a line differ
    findings: Callable[["Record"], list[str]] | None = None  # below the table; None: the best of each line
    config: str = "config/train_shakespeare_char_cpu.py"
    seeds: int = 5
    upward: bool = False  # compare each set with the one above it, not with the first

    def options(self, label: str) -> dict[str, Any]:
        """Return a set's options other than train.py's defaults."""
        words = [f"--{name}={value}" for name, value in self.sets[label].items()]
        found = given([str(ROOT / self.config), *words], Options)
        return {
            name: value
            for name, value in sorted(found.items())
            if name not in (*KEEPING, "seed") and value != getattr(Options, name)
        }


class Record:
    """An experiment's results: by option set `options`, `runs` and, once timed, `ms` of a step.

    Sets that the file alone has were tried, and taken out: they are shown, and not trained.
    """

    def __init__(self, experiment: Experiment, folder: Path = RESULTS):
        self.experiment, self.path = experiment, folder / f"{experiment.name}.json"
        try:
            self.sets = read_json(self.path)["sets"] if self.path.exists() else {}
            gone = self.sets.keys() - experiment.sets.keys()
            self.taken_out = {label: x["options"] for label, x in self.sets.items() if label in gone}
        except (ValueError, KeyError) as error:
            reason = f"cannot be read as results ({error}): git checkout restores it"
            raise UserError(f"{self.path}: {reason}") from None
        self.options = {label: experiment.options(label) for label in experiment.sets} | self.taken_out

    def entry(self, label: str) -> dict[str, Any]:
        """Return what is kept of a set's present options."""
        fresh = {"options": self.options.get(label), "runs": []}
        found = self.sets.get(label, fresh)
        return found if found["options"] == fresh["options"] else fresh

    def runs(self, label: str) -> list[dict]:
        return self.entry(label)["runs"]

    def table(self) -> pd.DataFrame:
        """Return a row for each run; its option set is `set`."""
        return pd.DataFrame([{"set": x, **run} for x in self.options for run in self.runs(x)])

    def losses(self, label: str) -> pd.Series:
        """Return a set's final validation losses by seed; NaN for a run that diverged."""
        return pd.Series({run["seed"]: run["val"] for run in self.runs(label)}, dtype=float)

    def add(self, label: str, run: dict) -> None:
        """Write a run's result, in place of one of the same seed."""
        others = [old for old in self.runs(label) if old["seed"] != run["seed"]]
        self.set(label, runs=sorted([*others, run], key=lambda run: run["seed"]))

    def set(self, label: str, **values: Any) -> None:
        """Change a set's entry, and write the file: a line for each run, for git."""
        self.sets[label] = self.entry(label) | values
        lines = []
        for name, entry in self.sets.items():
            head = json.dumps({key: value for key, value in entry.items() if key != "runs"})[1:-1]
            runs = ",\n".join(f"   {json.dumps(run, separators=(',', ':'))}" for run in entry["runs"])
            lines.append(f'  {json.dumps(name)}: {{{head}, "runs": [\n{runs}\n  ]}}')
        write_whole(self.path, '{"sets": {\n' + ",\n".join(lines) + "\n}}\n")

    def check_data(self, dataset: str, mark: str | None) -> None:
        """Raise UserError if the runs so far have read other data of that name."""
        for entry in self.sets.values():
            same = mark and entry["options"].get("dataset", Options.dataset) == dataset
            for run in entry["runs"] if same else ():
                if run.get("data", mark) != mark:
                    other = f"{dataset} ({run['data']}..., not {mark}..., with {run['versions']})"
                    advice = "prepare that one, or move the file away to begin anew"
                    raise UserError(f"{self.path}: its runs have read another {other}: {advice}")


def data_mark(dataset: str) -> str | None:
    """Return the start of the training tokens' checksum, if there is one: nanoGPT's data have none."""
    try:
        return read_json(dataset_dir(dataset) / "meta.json")["sha256"]["train"][:12]
    except (ValueError, KeyError):
        return None


def machine() -> dict[str, str]:
    packages = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy")]
    versions = ", ".join([f"Python {platform.python_version()}", *packages])
    return {"versions": versions, "cpu": describe_cpu(), "date": date.today().isoformat()}
