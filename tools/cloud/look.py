"""Look at runs without a machine: list them, watch one while it trains, and bring one home."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from config.command_line import UserError
from config.files import parse_json
from config.options import Options
from tools.cloud.places import Entry, Here, InVolume, Place

SILENT = 300  # seconds without a new record or checkpoint after which a run's lock means nothing
LOOK = 5.0  # seconds between two looks at a run that is watched


@dataclass(frozen=True)
class Standing:
    """A run as it stands: it says how far it has come."""

    name: str
    state: str  # running, finished, stopped, or empty
    iteration: int  # of its last record or checkpoint
    saved: int  # iteration of its last checkpoint
    max_iters: int
    val_loss: float | None  # the last
    best: float | None
    size: int  # bytes in its folder

    def __str__(self) -> str:
        loss = (
            f"val loss {self.val_loss:.4f}, best {self.best:.4f}" if self.val_loss is not None else "no loss"
        )
        where = "" if self.state == "finished" else f" at iter {self.iteration:,} of {self.max_iters:,}"
        return f"{self.name:32} {self.state}{where}, {loss}, {self.size / 1e6:,.1f} MB"


def read_records(place: Place, run: str) -> list[dict]:
    """Return a run's records, as metrics.jsonl has them."""
    # Here, because it imports JAX, which few commands of the launcher need.
    from runs.metrics import parse_record

    lines = (place.read(f"{run}/metrics.jsonl") or b"").splitlines()
    return [record for line in lines if (record := parse_record(line))]


def read_options(place: Place, run: str) -> Options | None:
    """Return a run's options; None where there is no run. Raises UserError for a damaged file."""
    data, path = place.read(f"{run}/options.json"), f"{run}/options.json"
    if data is None:
        return None
    try:
        values = parse_json(data.decode())
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as options: {error}") from None
    return Options.from_json(values, origin=path)


def is_running(entries: list[Entry], run: str) -> bool:
    """Tell whether a run holds its lock, and has lately written into its folder."""
    held = any(entry.path == f"{run}/lock" for entry in entries)
    return held and min(entry.age for entry in entries) < SILENT


def standing(place: Place, run: str) -> Standing | None:
    """Return how far a run has come; None where there is none."""
    options, entries = read_options(place, run), place.listing(run)
    if options is None:
        return None
    records = read_records(place, run)
    saved = [int(name) for entry in entries if (name := saved_iteration(entry.path, run)).isdecimal()]
    losses = [record["val/loss"] for record in records if "val/loss" in record]
    state = "running" if is_running(entries, run) else "stopped"
    if state == "stopped" and max(saved, default=0) >= options.max_iters:
        state = "finished"
    return Standing(
        name=run,
        state=state,
        iteration=max([*saved, *(record["iter"] for record in records)], default=0),
        saved=max(saved, default=0),
        max_iters=options.max_iters,
        val_loss=losses[-1] if losses else None,
        best=min(losses, default=None),
        size=sum(entry.size for entry in entries if not entry.is_folder),
    )


def saved_iteration(path: str, run: str) -> str:
    """Return the name of the checkpoint whose folder has this path; "" for another path."""
    parts = path.removeprefix(f"{run}/").split("/")
    return parts[1] if len(parts) == 2 and parts[0] == "checkpoints" else ""


def list_runs(place: Place) -> None:
    """Print a line for each run."""
    folders = sorted(entry.path for entry in place.listing("", below=False) if entry.is_folder)
    found = 0
    for folder in folders:
        try:
            line = standing(place, folder)
        except UserError as error:
            line = error
        found += line is not None
        if line is not None:
            print(line)
    if not found:
        print("no run is there")


def watch(place: Place, run: str, pause: float = LOOK) -> None:
    """Print a run's records as they come, and draw its curve here, until it ends. Raises UserError."""
    if standing(place, run) is None:
        raise UserError(f"--run-name={run}: there is no such run; list shows those that are there")
    from runs.metrics import draw  # here, as in read_records

    picture, seen = Path(f"{run}.png"), []
    while True:
        now = standing(place, run)
        records = read_records(place, run)
        if records[: len(seen)] != seen:  # it was resumed, and does some steps again
            seen = [record for record in seen if record in records]
        for record in records[len(seen) :]:
            print(describe(record), flush=True)
        if any("val/loss" in record for record in records[len(seen) :]):
            draw(records, picture)
            print(f"its curve: {picture}", flush=True)
        seen = records
        if now is None or now.state != "running":
            print(now or f"{run} is gone")
            return
        time.sleep(pause)


def describe(record: dict) -> str:
    """Return a record as a line: the iteration first, then its losses, then the rest that is short."""
    names = [
        name for name in ("train/loss", "val/loss", "loss", "lr", "grad_norm", "ms", "mfu") if name in record
    ]
    return f"iter {record['iter']:,}: " + ", ".join(f"{name} {record[name]:.4g}" for name in names)


def fetch(volume: InVolume, run: str, results: tuple[str, ...] = ()) -> list[Path]:
    """Copy a run of the Volume to the folder of its name here, or only its `results`; return the files.

    All is copied beside that folder before anything in it changes. Raises UserError where there is no such
    run, or where the folder here holds another.
    """
    files = [entry.path for entry in volume.listing(run) if not entry.is_folder]
    if results:
        wanted = tuple(f"{run}/{result}" for result in results)
        files = [path for path in files if path in wanted or path.startswith(tuple(f"{x}/" for x in wanted))]
    else:
        files = [path for path in files if path not in (f"{run}/lock", f"{run}/lock.txt")]
        check_same_run(volume, run, bool(files))
    if bad := [path for path in files if ".." in Path(path).parts]:
        raise UserError(f"{bad[0]}: this name leads out of the run's folder: remove it from the Volume")
    beside = Path(f".{run}.fetched")
    try:
        for path in files:
            (beside / path).parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(beside / path, "wb") as file:
                    file.writelines(volume.chunks(path))
            except FileNotFoundError:  # the run has just replaced it
                (beside / path).unlink()
        files = [path for path in files if (beside / path).exists()]
        for path in map(Path, files):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(beside / path, path)
    except OSError as error:
        raise UserError(f"{run}/: cannot be written ({error.strerror}): make room there") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return [Path(path) for path in files]


def check_same_run(volume: InVolume, run: str, there: bool) -> None:
    """Raise UserError for a run that is not there, or whose name another run has here."""
    if not there:
        raise UserError(f"--run-name={run}: there is no such run; list shows those that are there")
    ours, theirs = standing(Here(), run), standing(volume, run)
    if ours is None or theirs is None:
        return
    if read_options(Here(), run) != read_options(volume, run):
        raise UserError(f"{run}/ holds another run here, with other options: move that folder away")
    if ours.saved > theirs.saved:
        raise UserError(f"{run}/ has come further here (iter {ours.saved}): move that folder away")
