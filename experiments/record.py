"""An experiment, and the record of its runs: one JSON file, which the repository keeps.

A result belongs to the options that it was trained with. Where an experiment's option set has changed, what
was trained with the old ones is replaced by the first result of the new ones.
"""

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from config.command_line import UserError, given
from config.files import HOLDS_TOKENIZER, read_json, write_whole
from config.options import Options
from data.registry import dataset_dir
from runs.hardware import describe_cpu

ROOT = Path(__file__).resolve().parents[1]
# These say where a run is kept and what is written of it, and not what it trains.
KEEPING = {"out_dir": "", "keep_checkpoints": 1, "log_interval": 10, "wandb_log": False, "init_from": "auto"}
TAKEN_OUT = "tried, and taken out"
LAST_COMMIT = "dd10b5e"  # the last one that has the options of what was taken out


@dataclass(frozen=True)
class Experiment:
    """A question, and the runs that answer it."""

    name: str  # of its files in experiments/results/, and of its folder below out-experiments/
    program: str  # the module of experiments/ that has it
    question: str
    sets: dict[str, dict[str, Any]]  # options over the config's, by name; the first set is the base
    draw: Callable[[Any, "Experiment", "Record"], None]  # draws into matplotlib's axes
    config: str = "config/train_shakespeare_char_cpu.py"
    seeds: int = 5
    removed: dict[str, str] = field(default_factory=dict)  # sets that cannot be trained any more, and why
    upward: bool = False  # each set is a step up from the one above it, and compared with that one
    findings: Callable[["Experiment", "Record"], list[str]] | None = None  # lines below the table

    def options(self, label: str) -> dict[str, Any]:
        """Return the options of a set that differ from train.py's defaults, checked. Raises UserError."""
        own = self.sets[label]
        known = {} if label in self.removed else own  # train.py would refuse the options that are gone
        words = [f"--{name}={value}" for name, value in known.items()]
        found = given([str(ROOT / self.config), *words], Options) | own
        return {
            name: value
            for name, value in sorted(found.items())
            if name not in (*KEEPING, "seed") and value != getattr(Options, name, None)
        }


@dataclass(frozen=True)
class Summary:
    """The final validation losses of an option set's runs."""

    losses: dict[int, float]  # by seed, of the runs that ended
    diverged: int  # runs that did not
    seconds: float  # of training, on average

    @property
    def mean(self) -> float:
        """The mean loss; infinite without any."""
        return fmean(self.losses.values()) if self.losses else float("inf")

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None of fewer than two."""
        return stdev(self.losses.values()) if len(self.losses) > 1 else None


@dataclass(frozen=True)
class Record:
    """The results of an experiment: by option set its `options`, its `runs` and, once timed, its step."""

    sets: dict[str, dict[str, Any]] = field(default_factory=dict)

    def runs(self, label: str, options: dict) -> list[dict]:
        """Return the results of an option set, by ascending seed."""
        found = self.sets.get(label)
        runs = found["runs"] if found and found["options"] == options else []
        return sorted(runs, key=lambda run: run["seed"])

    def has(self, label: str, options: dict, seed: int) -> bool:
        """Tell whether the option set has the result of that seed."""
        return any(run["seed"] == seed for run in self.runs(label, options))

    def ms(self, label: str, options: dict) -> float | None:
        """Return the milliseconds of a step of an option set, if they were measured."""
        found = self.sets.get(label)
        return found.get("ms") if found and found["options"] == options else None

    def with_run(self, label: str, options: dict, run: dict) -> "Record":
        """Return the record with a run's result, in place of one of the same seed or of other options."""
        kept = [old for old in self.runs(label, options) if old["seed"] != run["seed"]]
        entry = self._entry(label, options) | {"runs": sorted([*kept, run], key=lambda run: run["seed"])}
        return Record(self.sets | {label: entry})

    def with_ms(self, label: str, options: dict, ms: float, timed: str) -> "Record":
        """Return the record with the milliseconds of a step, and where and when they were measured."""
        return Record(self.sets | {label: self._entry(label, options) | {"ms": ms, "timed": timed}})

    def _entry(self, label: str, options: dict) -> dict:
        found = self.sets.get(label)
        return found if found and found["options"] == options else {"options": options, "runs": []}

    def summary(self, label: str, options: dict) -> Summary:
        """Summarise the runs of an option set."""
        runs = self.runs(label, options)
        return Summary(
            {run["seed"]: run["val"] for run in runs if run["val"] is not None},
            sum(run["val"] is None for run in runs),
            fmean(run["seconds"] for run in runs) if runs else 0.0,
        )


def read_record(path: Path) -> Record:
    """Read the record of an experiment; an empty one where there is none. Raises UserError."""
    if not path.exists():
        return Record()
    try:
        return Record(read_json(path)["sets"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as results ({error}): git checkout restores it") from None


def write_record(path: Path, record: Record) -> None:
    """Write a record, with a line for each run, so that git shows what a new run changed."""
    lines = []
    for label, entry in record.sets.items():
        head = json.dumps({name: value for name, value in entry.items() if name != "runs"})[1:-1]
        runs = ",\n".join(f"   {json.dumps(run, separators=(',', ':'))}" for run in entry["runs"])
        lines.append(f'  {json.dumps(label)}: {{{head}, "runs": [\n{runs}\n  ]}}')
    write_whole(path, '{"sets": {\n' + ",\n".join(lines) + "\n}}\n", "make room there")


def data_mark(dataset: str) -> str | None:
    """Return the first digits of the checksum of a data set's training tokens; None where it has none."""
    try:
        return read_json(dataset_dir(dataset) / "meta.json", HOLDS_TOKENIZER)["sha256"]["train"][:12]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_data(path: Path, dataset: str, mark: str | None) -> None:
    """Raise UserError if runs of the record at `path` have read other data of that name."""
    for entry in read_record(path).sets.values():
        if entry["options"].get("dataset", Options.dataset) != dataset:
            continue
        for run in entry["runs"]:
            if mark and run.get("data", mark) != mark:
                python = run["versions"].split(",")[0]
                raise UserError(
                    f"{path}: its runs have read another {dataset} ({run['data']}..., not {mark}..., "
                    f"prepared with {python}): prepare that one, or move the file away to begin anew"
                )


def machine() -> dict[str, str]:
    """Return where and when a run was trained."""
    packages = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy")]
    versions = ", ".join([f"Python {platform.python_version()}", *packages])
    return {"versions": versions, "cpu": describe_cpu(), "date": date.today().isoformat()}
