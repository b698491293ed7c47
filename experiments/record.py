"""An experiment: sets of options to compare, and the results of their runs, in one JSON file."""

import json
import math
import platform
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from common.devices import describe_cpu
from common.errors import UserError
from common.files import read_json, refusing, write_whole
from config.options import Options
from data.dataset import dataset_dir
from experiments.snapshot import ROOT, Snapshot, digest

RESULTS = ROOT / "experiments" / "results"
TOKENS = ("gradient_accumulation_steps", "batch_size", "block_size")  # their product is a step's


@dataclass(frozen=True)
class Variant:
    """All runs of a set train with this code and these options."""

    code: Snapshot
    options: dict[str, Any]  # that are not train.py's defaults

    @property
    def mark(self) -> str:
        return digest((self.code.files, self.options))

    def option(self, name: str) -> Any:
        return self.options.get(name, getattr(Options, name))

    def unlike(self, base: "Variant") -> str:
        """Say which sizes differ from the base's: of equal steps, the larger lowers the loss by itself."""
        said = ""
        for what, names in {"context": ("block_size",), "tokens a step": TOKENS}.items():
            ours, theirs = (math.prod(map(x.option, names)) for x in (self, base))
            said += f" Its {what}: {ours:,}, the base's {theirs:,}." if ours != theirs else ""
        return said


@dataclass(frozen=True)
class Experiment:
    """A question, and the runs that answer it."""

    path: Path  # of the results; the table and the picture lie beside it
    question: str
    command: str
    sets: dict[str, Variant]  # the first is the base
    seeds: int = 5
    upward: bool = False  # compare each set with the one above it, not with the base
    equal: str = "steps"  # or tokens or time: what the sets have alike
    metric: str = "val"  # or bits_per_byte, where the sets have other tokens
    planned: int | None = None  # how many seeds were to be looked at first

    def record(self) -> "Record":
        return Record(self.path, self.sets, self.metric)


class Record:
    """The results in a file: by set its `options` and `runs` and, once timed, `ms` of a step.

    Sets that the file alone has were tried, and taken out: they are shown, and not trained.
    """

    def __init__(self, path: Path, sets: dict[str, Variant] | None = None, metric: str = "val"):
        self.path, self.metric = path, metric
        with refusing(f"{path}: cannot be read as results", "restore it", Exception):
            kept = read_json(path)["sets"] if path.exists() else {}
            wanted = {label: x.options for label, x in sets.items()} if sets else {}
            self.sets: dict[str, dict[str, Any]] = {x: {"options": y, "runs": []} for x, y in wanted.items()}
            # A set whose options have changed begins anew.
            self.sets |= {label: x for label, x in kept.items() if wanted.get(label) in (x["options"], None)}
            for label in self.sets:
                self.losses(label)
        self.taken_out = self.sets.keys() - wanted.keys() if sets else set()

    def losses(self, label: str) -> pd.Series:
        """Return a set's final validation losses by seed; NaN for a run that diverged."""
        return pd.Series({run["seed"]: run[self.metric] for run in self.sets[label]["runs"]}, dtype=float)

    def add(self, label: str, run: dict) -> None:
        """Write a run's result, in place of one of the same seed."""
        runs = {x["seed"]: x for x in [*self.sets[label]["runs"], run]}
        self.set(label, runs=[runs[seed] for seed in sorted(runs)])

    def set(self, label: str, **values: Any) -> None:
        """Change a set's entry, and write the file: a line for each run, for git."""
        self.sets[label] |= values
        lines = []
        for name, entry in self.sets.items():
            head = json.dumps({key: value for key, value in entry.items() if key != "runs"})[1:-1]
            runs = ",\n".join(f"   {json.dumps(run, separators=(',', ':'))}" for run in entry["runs"])
            lines.append(f'  {json.dumps(name)}: {{{head}, "runs": [\n{runs}\n  ]}}')
        write_whole(self.path, '{"sets": {\n' + ",\n".join(lines) + "\n}}\n")


def check_run(path: Path, run: dict, dataset: str) -> None:
    """Raise UserError if a run in this file is not whole, or had other data of that name, or packages."""
    if lacks := [name for name in ("seed", "val", "seconds", "cpu", "date", "versions") if name not in run]:
        raise UserError(f"{path}: a run lacks {', '.join(lacks)}: restore it, or move the file")
    data, versions = data_mark(dataset), machine()["versions"]
    for what, had, has in ((dataset, run.get("data"), data), ("versions", run["versions"], versions)):
        if had and has and had != has:
            raise UserError(f"{path}: a run had {what} {had}, not {has}: restore it, or move the file")


def data_mark(dataset: str) -> str | None:
    """Return the start of the training tokens' checksum, if there is one: nanoGPT's data have none."""
    try:
        return read_json(dataset_dir(dataset) / "meta.json")["sha256"]["train"][:12]
    except (ValueError, KeyError, TypeError):
        return None


@cache
def machine() -> dict[str, str]:
    packages = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy")]
    versions = ", ".join([f"Python {platform.python_version()}", *packages])
    return {"versions": versions, "cpu": describe_cpu(), "date": date.today().isoformat()}
