"""Read runs where they lie: in a folder of this machine, or in the Volume at Modal, without a container.

place.listing("big")                    what is in the run's folder, and below it
place.read("big/metrics.jsonl")         a file's bytes; None without it
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cloud import VOLUME
from config.command_line import UserError

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


class Place(Protocol):
    def listing(self, path: str, below: bool = True) -> list[Entry]:
        """Return what is in a folder, or also below it; nothing where there is no such folder."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file; None where there is none."""
        ...


@dataclass(frozen=True)
class Here:
    """The runs in a folder of this machine."""

    folder: Path = Path()

    def listing(self, path: str, below: bool = True) -> list[Entry]:
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
        try:
            return (self.folder / path).read_bytes()
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


def open_volume() -> "modal.Volume":
    """Return the Volume, which is made if it is missing. Raises UserError without Modal's client."""
    if modal is None:
        raise UserError("--run-on-remote needs Modal's client: pip install modal, then modal setup")
    return modal.Volume.from_name(VOLUME, create_if_missing=True)


@contextmanager
def modal_errors():
    """Turn what Modal refuses into a UserError."""
    try:
        yield
    except Exception as error:
        if modal is not None and isinstance(error, modal.exception.Error):
            raise UserError(f"Modal: {error}") from None
        raise
