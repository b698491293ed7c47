"""Files that the programs read and write.

A run, data or hub folder may be somebody else's: symlinks, devices and FIFOs there are refused. Writing is
atomic.
"""

import errno
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from config.command_line import UserError

GONE = (FileNotFoundError, NotADirectoryError)  # there is no such file
LARGEST = 2**27  # bytes of a text or JSON file; Gemma's tokenizer has 2**25


def open_file(path: Path, mode: str = "rb") -> IO[Any]:
    """Open a regular file, to write with "xb" or "ab". Raises OSError."""
    # In Hugging Face's cache each file of a snapshot is a link to a blob beside the snapshots.
    folder, blob = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    if folder.parent.name == "snapshots" and blob.parent == folder.parents[1] / "blobs":
        path = blob
    with suppress(FileNotFoundError):
        check_regular(path)
    encoding = None if "b" in mode else "utf-8"
    no_link = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor a FIFO, put there meanwhile
    return open(path, mode, encoding=encoding, opener=lambda x, flags: os.open(x, flags | no_link, 0o666))


def check_regular(path: Path | str) -> None:
    """Raise OSError for a link, a device or a FIFO."""
    mode = os.lstat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "a link, or not a regular file", str(path))


def check_tree(folder: Path) -> None:
    """Raise UserError for what `open_file` would refuse in a folder whose files Orbax opens."""
    with reading(folder):
        for parent, folders, files in os.walk(folder):
            for path in (parent, *(os.path.join(parent, name) for name in folders + files)):
                with suppress(FileNotFoundError):  # a run that goes on may delete files
                    check_regular(path)


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Turn an error of reading into a UserError, unless the file is gone."""
    try:
        yield
    except GONE:
        raise
    except (OSError, MemoryError) as error:
        named = getattr(error, "filename", None) or path
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{named}: cannot be read ({why}): put that right; nothing was changed") from None


def read_text(path: Path) -> str:
    """Read a text file. Raises `GONE`, UserError as `reading`, or ValueError for bad content."""
    with reading(path), open_file(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"larger than {LARGEST >> 20} MiB, which it can never be")
    return content.decode("utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ValueError when it is missing or damaged; UserError as `reading`."""
    try:
        return parse_json(read_text(path))
    except GONE as error:
        raise ValueError(error.strerror) from None


def parse_json(text: str) -> Any:
    """Return the values of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_whole(value: Any, below: int = 2**32) -> bool:
    """Tell whether a JSON value is an integer of a possible size. True is none."""
    return type(value) is int and abs(value) < below


def is_number(value: Any) -> bool:
    """Tell whether a JSON value is an integer, or a finite float."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_plain_name(name: Any) -> bool:
    """Tell whether a name in a file is that of a file in the same folder, and no path out of it."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]{0,200}", name, re.ASCII) is not None


@contextmanager
def written(path: Path, advice: str) -> Generator[IO[bytes]]:
    """Yield a file to fill, which then becomes `path`. Raises UserError, which ends in the `advice`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # of a killed process, or planted
        with open_file(temporary, "xb") as file:
            yield file
        put_in_place(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): {advice}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_whole(path: Path, text: str, advice: str = "choose another --out_dir") -> None:
    """Write a text file as `written` does."""
    with written(path, advice) as file:
        file.write(text.encode())


def check_writable(path: Path, advice: str) -> None:
    """Raise UserError, as `written` would, but leave the file as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): {advice}") from None


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a complete file, so that after a loss of power it or the one before it is there."""
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk. Raises OSError."""
    is_folder = path.is_dir()
    try:
        number = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs what it may write
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError:
        if not is_folder:  # which Windows and some file systems do not sync
            raise


def cache_folder() -> Path:
    """Return the folder, perhaps missing, for what can be made again."""
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"), "nanojaxgpt")


def first_line(error: BaseException) -> str:
    """Shorten another library's message to one line."""
    return (str(error).strip() or type(error).__name__).split("\n")[0][:200]
