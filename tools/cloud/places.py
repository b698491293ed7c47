"""Read runs where they lie, in a folder of this machine or in the Volume at Modal, without a container."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from config.command_line import UserError
from config.files import open_file, parse_json
from config.options import Options
from tools.cloud import VOLUME
from tools.cloud.options import RATES

try:
    import modal
except ImportError:  # only the cloud needs it
    modal: Any = None

SILENT = 900  # seconds without a record, after which a lock is taken for that of a run that was killed
WATCHED = ("train/loss", "val/loss", "loss", "lr", "grad_norm", "ms", "mfu")
MODAL_ERRORS = (modal.exception.Error,) if modal else ()


class Here:
    """The runs in the working directory."""

    def listing(self, folder: str = "") -> list[str]:
        """Return the names in a folder; none where there is no such folder."""
        with suppress(OSError):
            return sorted(os.listdir(folder or "."))
        return []

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file; None where there is none."""
        try:
            with open_file(Path(path)) as file:
                return file.read()
        except OSError:
            return None


class InVolume:
    """The runs in the Volume. Raises UserError without Modal's client."""

    def __init__(self):
        if modal is None:
            raise UserError("--run-on-remote needs Modal's client: pip install modal, then modal setup")
        self.volume = modal.Volume.from_name(VOLUME, create_if_missing=True)

    def listing(self, folder: str = "", root: str = "runs") -> list[str]:
        path = f"{root}/{folder}".rstrip("/")
        with suppress(modal.exception.NotFoundError, FileNotFoundError):
            return sorted(Path(entry.path).name for entry in self.volume.listdir(f"/{path}"))
        return []

    def read(self, path: str) -> bytes | None:
        try:
            return b"".join(self.volume.read_file(f"runs/{path}"))
        except FileNotFoundError:
            return None


Place = Here | InVolume


@contextmanager
def modal_errors() -> Generator[None]:
    """Turn what Modal refuses into a UserError."""
    try:
        yield
    except MODAL_ERRORS as error:
        raise UserError(f"Modal: {error}") from None


def current_rates() -> Mapping[str, float]:
    """Return Modal's rates now; those of the table for one who may not ask."""
    try:
        rates = modal.Workspace.from_context().billing.rates()
    except (modal.exception.AuthError, modal.exception.PermissionDeniedError):
        return RATES
    return {**RATES, **{name: float(rate) for name, rate in rates.items()}}


def read_options(place: Place, run: str) -> Options | None:
    """Return a run's options; None where there is no run. Raises UserError for a damaged file."""
    if (data := place.read(path := f"{run}/options.json")) is None:
        return None
    try:
        return Options.from_json(parse_json(data.decode()), origin=path)
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as options: {error}") from None


def read_records(place: Place, run: str) -> list[dict]:
    """Return a run's records, as metrics.jsonl has them."""
    from runs.metrics import parse_record  # here, because it imports JAX, which few commands need

    lines = (place.read(f"{run}/metrics.jsonl") or b"").splitlines()
    return [record for line in lines if (record := parse_record(line))]


def saved_iteration(place: Place, run: str) -> int:
    """Return the iteration of a run's newest checkpoint; 0 without one."""
    names = place.listing(f"{run}/checkpoints")
    return max((int(name) for name in names if name.isdecimal()), default=0)


def losses_of(records: list[dict]) -> list[float]:
    return [record["val/loss"] for record in records if "val/loss" in record]


def describe_run(place: Place, run: str) -> str:
    """Return a line about a run, by its records."""
    records = read_records(place, run)
    losses = losses_of(records)
    loss = f"val loss {losses[-1]:.4f}, best {min(losses):.4f}" if losses else "no loss yet"
    return f"{run:32} iter {max((record['iter'] for record in records), default=0):,}, {loss}"


def list_runs(place: Place) -> None:
    """Print a line for each run."""
    runs = [run for run in place.listing() if "options.json" in place.listing(run)]
    print("\n".join(describe_run(place, run) for run in runs) or "no run is there")


def check_run(place: Place, run: str) -> None:
    """Raise UserError where a place has no run of that name."""
    if "options.json" not in place.listing(run):
        raise UserError(f"--run-name={run}: there is no such run; `list` shows those that are there")


def is_prepared_there(volume: InVolume, dataset: str) -> bool:
    """Tell whether the Volume has a data set."""
    return bool({"train.bin", "train_00000.bin"} & {*volume.listing(dataset, root="data")})


def watch(place: Place, run: str, pause: float = 5.0) -> None:
    """Print a run's records as they come, while it has its lock and is not silent. Raises UserError."""
    check_run(place, run)
    shown, heard = 0, time.monotonic()
    while True:
        training, records = "lock" in place.listing(run), read_records(place, run)
        for record in records[shown:]:
            values = (f"{name} {record[name]:.4g}" for name in WATCHED if name in record)
            print(f"iter {record['iter']:,}: {', '.join(values)}", flush=True)
            heard = time.monotonic()
        shown = len(records)  # fewer than before, if it was resumed and does steps again
        if not training or time.monotonic() - heard > SILENT:
            print(describe_run(place, run))
            return
        time.sleep(pause)


def fetch(run: str, results: tuple[str, ...] = ()) -> None:
    """Copy a run of the Volume, or only its `results`, to the folder of its name here, when all has come.

    Raises UserError where there is no such run, or where it is here already.
    """
    if not results:
        check_run(InVolume(), run)
        if Path(run).exists():
            raise UserError(f"{run}/ is here already: move it away, and fetch again")
    for path in [Path(run, result) for result in results] or [Path(run)]:
        try:
            with tempfile.TemporaryDirectory(prefix=".", dir=".") as beside:
                source = f"runs/{path.as_posix()}"
                get = [sys.executable, "-m", "modal", "volume", "get", VOLUME, source, beside]
                if status := subprocess.run(get).returncode:
                    raise UserError(f"{source}: modal volume get ended with status {status}; try again")
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():  # an earlier result
                    shutil.rmtree(path)
                came = Path(beside) / path.name
                for lock in came.glob("lock*"):  # of the run at Modal, if it goes on
                    lock.unlink()
                os.replace(came, path)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}): make room there") from None
        print(f"{path} is here now")
