"""Files of a run: written beside their place and renamed, so that no reader ever finds half of one."""

import os
from contextlib import suppress
from pathlib import Path

from config.command_line import UserError


def write_whole(path: Path, text: str, option: str = "out_dir") -> None:
    """Write a file beside its place, then rename it there.

    Raises UserError when that cannot be done, naming the `option` that gave the place.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): choose another --{option}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def first_line(error: Exception) -> str:
    """Shorten another library's message to one line."""
    return (str(error).strip() or type(error).__name__).split("\n")[0][:200]
