"""An experiment: sets of options to compare, and the results of their runs, in one JSON file."""

import json
import math
import platform
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
import pydantic.dataclasses
from pydantic import ConfigDict, Field, FiniteFloat

from common.command_line import NonNegative, NonNegativeInt, Seed, value_reader
from common.devices import describe_cpu
from common.errors import UserError
from common.files import read_json, refusing, write_whole
from config.options import Options
from data.dataset import dataset_dir
from experiments.snapshot import ROOT, Snapshot, digest

RESULTS = ROOT / "experiments" / "results"


def kept(path: Path, kind: Any) -> Any:
    """Read what an earlier command wrote; {} if it is not there. Raises UserError for a damaged file."""
    with refusing(f"{path}: cannot be read", "restore or delete it", ValueError):
        return read_json(path, kind) if path.exists() else {}


def not_defaults(
    values: dict[str, Any], left_out: Collection[str], theirs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the options that are not train.py's defaults, in order, without some.

    Of other code, whose defaults are `theirs`, also what is a default here and another one there.
    """
    left = sorted(values.keys() - left_out)
    ours = {name: getattr(Options, name, None) for name in left}
    defaults = (ours, theirs or ours)
    return {name: values[name] for name in left if any(values[name] != x.get(name) for x in defaults)}


@dataclass(frozen=True)
class Variant:
    """All runs of a set train with this code and these options."""

    code: Snapshot
    options: dict[str, Any]  # that are not train.py's defaults

    @property
    def mark(self) -> str:
        return digest((self.code.files, self.options, data_mark(self.option("dataset"))))

    def option(self, name: str) -> Any:
        return self.options.get(name, getattr(Options, name))

    def sizes(self) -> dict[str, int]:
        step = map(self.option, ("gradient_accumulation_steps", "batch_size", "block_size"))
        return {"context": self.option("block_size"), "tokens a step": math.prod(step)}

    def unlike(self, base: "Variant") -> str:
        """Say which sizes differ from the base's: of equal steps, the larger lowers the loss by itself."""
        pairs = zip(self.sizes().items(), base.sizes().values(), strict=True)
        return "".join(f" Its {what}: {x:,}, the base's {y:,}." for (what, x), y in pairs if x != y)


@dataclass(frozen=True)
class Experiment:
    """A question, and the runs that answer it."""

    path: Path  # of the results; the table and the picture lie beside it
    question: str = ""
    command: str = ""
    sets: dict[str, Variant] = field(default_factory=dict)  # the first is the base
    seeds: int = 5
    upward: bool = False  # compare each set with the one above it, not with the base
    equal: str = "steps"  # or tokens or time: what the sets have alike
    metric: str = "val"  # or another field of Result
    planned: int | None = None  # how many seeds were to be looked at first

    def record(self) -> "Record":
        """Read the results, as they are by now: other commands may add to them, too."""
        return Record(self.path, self)


Value = bool | int | FiniteFloat | str | None
STRICT: Any = dict(frozen=True, kw_only=True, config=ConfigDict(strict=True, allow_inf_nan=False))


@pydantic.dataclasses.dataclass(**STRICT)
class Result:
    """Holds what a run came to, as its result.json and a line of an experiment's file have it."""

    seed: Seed
    val: NonNegative | None  # the loss of the last evaluation; None: it diverged
    diverged: NonNegativeInt | None  # at this iteration
    steps: NonNegativeInt
    seconds: NonNegative  # of steps
    evaluations: list[tuple[NonNegativeInt, NonNegative, NonNegative]]  # iteration, train and val loss
    data: str | None  # data_mark
    versions: str
    cpu: str
    date: str
    # The run's own evaluate.py measures it over all validation text, if that was asked for.
    loss: NonNegative | None = None
    bits_per_byte: NonNegative | None = None

    def __post_init__(self):
        last = [val for _, _, val in self.evaluations][-1:] if self.diverged is None else [None]
        if last != [self.val]:
            raise ValueError("val is not the last of the evaluations, or null for a run that diverged")

    def has(self, metric: str) -> bool:
        return self.diverged is not None or getattr(self, metric) is not None

    def to_json(self) -> str:
        return value_reader(Result).dump_json(self, exclude_defaults=True).decode()

    def check(self, path: Path, dataset: str) -> None:
        """Raise UserError if this run in a file had other data of that name, or packages."""
        data, versions = data_mark(dataset), machine()["versions"]
        for what, had, has in ((dataset, self.data, data), ("versions", self.versions, versions)):
            if had and has and had != has:
                raise UserError(f"{path}: a run had {what} {had}, not {has}: restore it, or move the file")


@pydantic.dataclasses.dataclass(**STRICT)
class Entry:
    """A set in an experiment's file."""

    options: dict[str, Value]  # that are not train.py's defaults
    runs: list[Result]
    ms: Annotated[float, Field(ge=1e-6, le=1e12)] | None = None  # of a step
    ratio_half: NonNegative | None = None  # half the interval of ms over the base's
    timed: str | None = None  # when and where

    def __post_init__(self):
        if type(self.option("max_iters")) is not int:
            raise ValueError("options.max_iters is no integer")

    def option(self, name: str) -> Any:
        return self.options.get(name, getattr(Options, name))


SETS = Annotated[dict[Literal["sets"], dict[str, Entry]], Field(min_length=1)]  # an experiment's file


class Record:
    """The results in a file, by set.

    Sets that the file alone has were tried, and taken out: they are shown, and not trained.
    """

    def __init__(self, path: Path, experiment: Experiment | None = None):
        self.path, self.experiment = path, experiment or Experiment(path)
        found: dict[str, Entry] = kept(path, SETS).get("sets", {})
        wanted = {label: x.options for label, x in self.experiment.sets.items()}
        self.sets = {label: Entry(options=options, runs=[]) for label, options in wanted.items()}
        # A set whose options have changed begins anew.
        self.sets |= {label: x for label, x in found.items() if wanted.get(label) in (x.options, None)}
        self.taken_out = self.sets.keys() - wanted.keys()

    def losses(self, label: str) -> pd.Series:
        """Return a set's final validation losses by seed; NaN for a run that diverged."""
        metric = self.experiment.metric
        losses = {x.seed: getattr(x, metric) for x in self.sets[label].runs if x.has(metric)}
        return pd.Series(losses, dtype=float)

    def add(self, label: str, run: Result) -> None:
        """Write a run's result, in place of one of the same seed."""
        runs = {x.seed: x for x in [*self.sets[label].runs, run]}
        self.set(label, runs=[runs[seed] for seed in sorted(runs)])

    def set(self, label: str, **values: Any) -> None:
        """Change a set's entry, and write the file: a line for each run, for git."""
        self.sets[label] = replace(self.sets[label], **values)
        lines = []
        for name, entry in self.sets.items():
            head = value_reader(Entry).dump_python(entry, exclude={"runs"}, exclude_defaults=True)
            runs = ",\n".join(f"   {run.to_json()}" for run in entry.runs)
            lines.append(f'  {json.dumps(name)}: {{{json.dumps(head)[1:-1]}, "runs": [\n{runs}\n  ]}}')
        write_whole(self.path, '{"sets": {\n' + ",\n".join(lines) + "\n}}\n")


def read_result(path: Path) -> Result:
    """Read the result in a run's folder, whose name ends with the seed. Raises UserError."""
    with refusing(f"{path}: cannot be read", "restore it, or delete it to train again", ValueError):
        found = read_json(path, Result)
        if path.parent.suffix != f".seed-{found.seed}":
            raise ValueError(f"seed is {found.seed}: its folder has another")
        return found


def data_mark(dataset: str) -> str | None:
    """Return the start of the training tokens' checksum, if there is one: nanoGPT's data have none."""
    try:
        return read_json(dataset_dir(dataset) / "meta.json")["sha256"]["train"][:12]
    except (ValueError, KeyError, TypeError):
        return None


def machine() -> dict[str, str]:
    packages = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy")]
    versions = ", ".join([f"Python {platform.python_version()}", *packages])
    return {"versions": versions, "cpu": describe_cpu(), "date": date.today().isoformat()}
