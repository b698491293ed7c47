"""Files that the programs read and write.

A file that is read may be damaged, or somebody else's: bad JSON raises an error of one line, and a name in it
is no path out of its folder. A file that is written is whole at any time.
"""

import errno
import json
import math
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from config.command_line import UserError


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ValueError, with a line that says why it cannot be read."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(error.strerror) from None


def parse_json(text: str) -> Any:
    """Return the values of a JSON text. Raises ValueError, also for nesting that Python cannot follow."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_whole(value: Any, below: int = 2**32) -> bool:
    """Tell whether a JSON value is a whole number, of a size that an axis may have. True is none."""
    return type(value) is int and abs(value) < below


def is_number(value: Any) -> bool:
    """Tell whether a JSON value is a number: whole, or a finite fraction."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_plain_name(name: Any) -> bool:
    """Tell whether a name that a file gives is of a file in the same folder, and no path out of it."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]{0,200}", name, re.ASCII) is not None


def write_whole(path: Path, text: str, advice: str = "choose another --out_dir") -> None:
    """Write a file beside its place, then rename it there: after a loss of power it is the old or the new.

    Raises UserError, which ends in the `advice`, when that cannot be done.
    """
    with _beside(path, advice) as temporary:
        temporary.write_text(text, encoding="utf-8")
        put_in_place(temporary, path)


def check_writable(path: Path, advice: str) -> None:
    """Raise UserError, which ends in the `advice`, when a file could not be written. Leaves it as it is."""
    with _beside(path, advice) as temporary:
        temporary.touch()
        if path.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a file that is written, so that not even a loss of power leaves less than all of it there."""
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


@contextmanager
def _beside(path: Path, advice: str) -> Generator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): {advice}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on disk and not only in memory. Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError:
        if not path.is_dir():  # some file systems have no fsync of a folder
            raise
    finally:
        os.close(number)


def cache_folder() -> Path:
    """Return the folder, which may be missing, for what can be made again."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanojaxgpt"
    except RuntimeError:  # a user without a home, for whom nothing can be kept
        return Path(os.devnull) / "nanojaxgpt"


def first_line(error: BaseException) -> str:
    """Shorten another library's message to one line."""
    return (str(error).strip() or type(error).__name__).split("\n")[0][:200]
