"""An experiment, and the record of its runs: one JSON file, which the repository keeps.

A result belongs to the options that it was trained with. Where an option set has changed, the first result
of the new options replaces those of the old ones.
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
from config.files import HOLDS_TOKENIZER, read_json, write_whole
from config.options import Options
from data.dataset import dataset_dir
from runs.hardware import describe_cpu

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
# These say where a run is kept and what is written of it, not what it trains.
KEEPING = {"out_dir": "", "keep_checkpoints": 1, "log_interval": 10, "wandb_log": False, "init_from": "auto"}
TAKEN_OUT = "tried, and taken out"
LAST_COMMIT = "dd10b5e"  # the last one with the options that were taken out

# Half the width and the steps of the CPU Shakespeare run, for questions that need many runs. Losses are
# estimated on 100 batches instead of 20, and so with half the noise.
MINIATURE = dict(
    n_embd=64, max_iters=1000, lr_decay_iters=1000, warmup_iters=50, eval_interval=500, eval_iters=100
)


@dataclass(frozen=True)
class Experiment:
    """A question, and the runs that answer it."""

    name: str  # of its files in experiments/results/, and of its folder below out-experiments/
    program: str  # the module of experiments/ that has it
    question: str
    sets: dict[str, dict[str, Any]]  # options over the config's, by name; the first set is the base
    draw: Callable[[Any, "Record"], None]  # draws into matplotlib's axes
    config: str = "config/train_shakespeare_char_cpu.py"
    seeds: int = 5
    removed: dict[str, str] = field(default_factory=dict)  # sets that cannot be trained any more, and why
    upward: bool = False  # each set is compared with the one above it, not with the first
    findings: Callable[["Record"], list[str]] | None = None  # lines below the table

    def options(self, label: str) -> dict[str, Any]:
        """Return a set's options that differ from train.py's defaults. Raises UserError for a bad one."""
        own = self.sets[label]
        known = {} if label in self.removed else own  # train.py would refuse the options that are gone
        words = [f"--{name}={value}" for name, value in known.items()]
        found = given([str(ROOT / self.config), *words], Options) | own
        return {
            name: value
            for name, value in sorted(found.items())
            if name not in (*KEEPING, "seed") and value != getattr(Options, name, None)
        }


class Record:
    """The results of an experiment: by option set its `options`, its `runs` and, once timed, its step.

    Raises UserError for a damaged file. Without a file there are no results yet.
    """

    def __init__(self, experiment: Experiment, folder: Path = RESULTS):
        self.experiment, self.path = experiment, folder / f"{experiment.name}.json"
        self.options = {label: experiment.options(label) for label in experiment.sets}
        try:
            self.sets = dict(read_json(self.path)["sets"]) if self.path.exists() else {}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path}: cannot be read as results ({error}): git checkout restores it"
            ) from None

    def entry(self, label: str) -> dict[str, Any]:
        """Return what is kept of an option set: nothing of runs with other options."""
        found = self.sets.get(label, {})
        fresh = {"options": self.options[label], "runs": []}
        return found if found.get("options") == self.options[label] else fresh

    def runs(self, label: str) -> list[dict]:
        """Return the results of an option set, by ascending seed."""
        return self.entry(label)["runs"]

    def losses(self, label: str) -> pd.Series:
        """Return the final validation losses of an option set by seed; NaN for a run that diverged."""
        return pd.Series({run["seed"]: run["val"] for run in self.runs(label)}, dtype=float)

    def add(self, label: str, run: dict) -> None:
        """Write a run's result to the file, in place of one of the same seed."""
        others = [old for old in self.runs(label) if old["seed"] != run["seed"]]
        self.set(label, runs=sorted([*others, run], key=lambda run: run["seed"]))

    def set(self, label: str, **values: Any) -> None:
        """Change an option set's entry, and write the file, whose runs have a line each for git's sake."""
        self.sets[label] = self.entry(label) | values
        lines = []
        for name, entry in self.sets.items():
            head = json.dumps({key: value for key, value in entry.items() if key != "runs"})[1:-1]
            runs = ",\n".join(f"   {json.dumps(run, separators=(',', ':'))}" for run in entry["runs"])
            lines.append(f'  {json.dumps(name)}: {{{head}, "runs": [\n{runs}\n  ]}}')
        write_whole(self.path, '{"sets": {\n' + ",\n".join(lines) + "\n}}\n", "make room there")

    def check_data(self, dataset: str, mark: str | None) -> None:
        """Raise UserError if the runs so far have read other data of that name."""
        entries = [x for x in self.sets.values() if x["options"].get("dataset", Options.dataset) == dataset]
        for run in (run for entry in entries for run in entry["runs"]):
            if mark and run.get("data", mark) != mark:
                python = run["versions"].split(",")[0]
                raise UserError(
                    f"{self.path}: its runs have read another {dataset} ({run['data']}..., not {mark}..., "
                    f"prepared with {python}): prepare that one, or move the file away to begin anew"
                )


def data_mark(dataset: str) -> str | None:
    """Return the first digits of the checksum of a data set's training tokens; None where it has none."""
    try:
        return read_json(dataset_dir(dataset) / "meta.json", HOLDS_TOKENIZER)["sha256"]["train"][:12]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def machine() -> dict[str, str]:
    """Return the versions, the CPU and the date of a run."""
    packages = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy")]
    versions = ", ".join([f"Python {platform.python_version()}", *packages])
    return {"versions": versions, "cpu": describe_cpu(), "date": date.today().isoformat()}
