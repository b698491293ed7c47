"""Read runs where they lie: in a folder of this machine, or in the Volume at Modal, without a container.

place.listing("big")                    what is in the run's folder, and below it
place.read("big/metrics.jsonl")         a file's bytes; None without it
"""

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from config.command_line import UserError
from config.files import open_file
from tools.cloud import VOLUME
from tools.cloud.prices import RATES

try:
    import modal
except ImportError:  # only the cloud needs it
    modal: Any = None


class Entry(NamedTuple):
    """A file or folder; `path` begins at the place, and `age` is in seconds."""

    path: str
    is_folder: bool
    size: int
    age: float


@dataclass(frozen=True)
class Here:
    """The runs in a folder of this machine."""

    folder: Path = Path()

    def listing(self, path: str, below: bool = True) -> list[Entry]:
        """Return what is in a folder, or also below it; nothing where there is no such folder."""
        folder, now, found = self.folder / path, time.time(), []
        for entry in folder.rglob("*") if below else folder.glob("*"):
            try:
                stat = entry.stat()
            except OSError:  # a run has just replaced it
                continue
            name = str(entry.relative_to(self.folder))
            found.append(Entry(name, entry.is_dir(), stat.st_size, now - stat.st_mtime))
        return found

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file; None where there is none."""
        try:
            with open_file(self.folder / path, root=self.folder) as file:
                return file.read()
        except OSError:
            return None


class InVolume:
    """The runs in the Volume, or its data. Raises UserError where Modal cannot be asked."""

    def __init__(self, root: str = "runs"):
        self.root = root
        with modal_errors():
            self.volume = open_volume()
            self.volume.hydrate()

    def listing(self, path: str, below: bool = True) -> list[Entry]:
        with modal_errors():
            try:
                entries = self.volume.listdir(f"/{self.root}/{path}".rstrip("/"), recursive=below)
            except (modal.exception.NotFoundError, FileNotFoundError):
                return []
        folder, now = modal.types.FileEntryType.DIRECTORY, time.time()
        start = len(self.root) + 1
        return [
            Entry(entry.path.lstrip("/")[start:], entry.type == folder, entry.size, now - entry.mtime)
            for entry in entries
        ]

    def read(self, path: str) -> bytes | None:
        try:
            return b"".join(self.chunks(path))
        except FileNotFoundError:
            return None

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file. Raises FileNotFoundError, and UserError."""
        with modal_errors():
            yield from self.volume.read_file(f"{self.root}/{path}")


Place = Here | InVolume


def open_volume() -> "modal.Volume":
    """Return the Volume, which is made if it is missing."""
    return modal.Volume.from_name(VOLUME, create_if_missing=True)


def current_rates() -> Mapping[str, float]:
    """Return Modal's rates now; those of the table for one who may not ask. Raises UserError."""
    with modal_errors():
        try:
            rates = modal.Workspace.from_context().billing.rates()
        except (modal.exception.AuthError, modal.exception.PermissionDeniedError):
            return RATES
    return {**RATES, **{name: float(rate) for name, rate in rates.items()}}


@contextmanager
def modal_errors() -> Generator[None]:
    """Turn what Modal refuses, a run that it ended, or a missing client, into a UserError."""
    if modal is None:
        raise UserError("--run-on-remote needs Modal's client: pip install modal, then modal setup")
    try:
        yield
    except (modal.exception.Error, ChildProcessError) as error:
        why = str(error) or "the run was cancelled; the same command goes on with it"  # at Modal's dashboard
        raise UserError(f"Modal: {why}") from None
