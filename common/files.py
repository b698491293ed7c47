"""Files that the programs read and write.

Writing is atomic. A run's folder may be somebody else's: no link that lies there is written through.
"""

import codecs
import errno
import os
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pydantic_core import ValidationError

from common.command_line import first_problem, value_reader
from common.errors import UserError

GONE = (FileNotFoundError, NotADirectoryError)  # there is no such file


def cache_folder() -> Path:
    """Return the folder of what the user's next start can use; without a home one that cannot be made."""
    kept = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(kept if os.path.isabs(kept) else os.devnull, "nanojaxgpt")


def read_json(path: Path, kind: Any = Any) -> Any:
    """Read a JSON file of this type. Raises ValueError if it is missing or damaged, OSError if unreadable."""
    try:
        return value_reader(kind).validate_json(path.read_bytes(), strict=True)
    except GONE as error:
        raise ValueError(error.strerror) from None
    except ValidationError as error:
        raise ValueError(first_line(error)) from None


def is_utf16(content: bytes) -> bool:
    """Tell whether bytes are UTF-16: by its mark, or by zeros beside nearly all letters, as of ASCII."""
    zeros = sorted(half.count(0) / max(1, len(half)) for half in (content[::2], content[1::2]))
    return content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or zeros[0] < 0.25 < 0.75 < zeros[1]


def from_utf8(content: bytes) -> str:
    """Decode UTF-8. Raises UnicodeDecodeError, also for UTF-16 whose bytes happen to be UTF-8."""
    if is_utf16(content):
        raise UnicodeDecodeError("utf-8", content, 0, 1, "UTF-16")
    return content.decode("utf-8")


def decode_text(content: bytes, where: str, begins: int = 0) -> str:
    r"""Return a text as text mode reads it, newlines \n, without a byte-order mark. Raises UserError."""
    try:
        text = from_utf8(content)
    except UnicodeDecodeError as error:
        kind = "UTF-16" if is_utf16(content) else "LATIN1"
        what = f"{where}: not UTF-8 at byte {begins + error.start}"
        raise UserError(f"{what}: convert it, as in iconv -f {kind} -t UTF-8, if it is {kind}") from None
    return re.sub("\r\n?", "\n", text.removeprefix("\ufeff"))


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Add the file's name to an error within; the error of a full disk has none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def written(path: Path) -> Generator[IO[bytes]]:
    """Yield a file to fill, which then becomes `path`, in a folder that may be new. Raises OSError."""
    refuse_special(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # a killed process or an attacker may have left one
    try:
        with naming(path), open(temporary, "xb") as file:
            yield file
        put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file as `written` does."""
    with written(path) as file:
        file.write(text.encode())


def check_writable(path: Path) -> None:
    """Raise OSError, as `written` would, but leave the file as it is."""
    refuse_special(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path.parent).close()
    if path.is_dir():
        raise IsADirectoryError(f"{path}: Is a directory")


def refuse_special(path: Path) -> None:
    """Raise OSError for a device or a pipe, as /dev/stdout: a file would take its place."""
    if path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
        raise OSError(errno.EINVAL, "is no ordinary file: give another", str(path))


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a complete file, so that after a loss of power it or the one before it is there."""
    with open(temporary, "r+b") as file:  # Windows syncs what it may write
        os.fsync(file.fileno())
    os.replace(temporary, path)
    with suppress(OSError):  # Windows and some file systems do not sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def refusing(what: str, advice: str, *errors: type[Exception]) -> Generator[None]:
    """Turn a library's error within into a UserError."""
    try:
        yield
    except errors as error:
        raise UserError(f"{what} ({first_line(error)}): {advice}") from None


def first_line(error: BaseException) -> str:
    """Shorten another library's message to one line, whose end often has the reason."""
    text = first_problem(error) if isinstance(error, ValidationError) else str(error).strip()
    line = (text or type(error).__name__).split("\n")[0]
    return line if len(line) <= 200 else f"{line[:100]} ... {line[-95:]}"
