"""A user's mistake is one line: `UserError`, and `command`, which runs each command's `main`.

A command imports this file first, so that an error or a Ctrl-C while JAX is imported is one line, too.
"""

import os
import signal
import sys
import traceback
from _thread import interrupt_main
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from threading import Timer
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("error: this Python is older than 3.11: make .venv anew with Python 3.11, 3.12 or 3.13")


class UserError(Exception):
    """A mistake of the user, in one line: which file or option is wrong, why, and what to do."""

    def __init__(self, text: str):
        line = " ".join(text.split())
        line = line if len(line) < 1000 else f"{line[:700]} ... {line[-300:]}"
        # A terminal would obey an escape sequence, as in a file's name: it becomes "?".
        super().__init__("".join(c if c.isprintable() else "?" for c in line))


def command(main: Callable[[list[str]], int | None]) -> None:
    """Run a command's `main(argv)`, and exit with its status; after an error with 2, a user's in one line."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")  # a character that a terminal does not have becomes "?"
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as this file has set it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = repeat_ctrl_c
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
        if status:
            sys.exit(status)
    except BrokenPipeError:  # the reader has closed, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit would fail to flush it
        sys.exit(141)
    except KeyboardInterrupt:
        with suppress(OSError):
            sys.stdout.flush()
        # Not sys.exit: threads that still compile would delay it, or crash while Python ends.
        os._exit(130)  # as a shell expects after Ctrl-C; training handles its own and saves first
    except Exception as error:
        with suppress(OSError):
            sys.stdout.flush()  # where both go to a file, the error stands last
        if (line := in_one_line(error)) is None:
            traceback.print_exc()
        else:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)  # Python's own status 1 is an answer of some commands


def repeat_ctrl_c(lost: Any) -> None:
    """Raise a Ctrl-C again that was lost in a library's callback, as JAX has one of the garbage collector."""
    if lost.exc_type is KeyboardInterrupt:
        Timer(0.01, interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


def in_one_line(error: BaseException) -> str | None:
    """Say what the user can mend: a UserError, a file, too little memory. None: show the traceback."""
    if os.environ.get("NANOJAXGPT_DEBUG"):
        error.__suppress_context__ = False  # shows the error that `raise ... from None` hides
        return None
    # XLA says it with this word, as TensorStore does of a disk, which is a UserError by then.
    exhausted = "RESOURCE_EXHAUSTED" in str(error) and not isinstance(error, UserError)
    if isinstance(error, MemoryError) or exhausted:
        error = UserError(
            f"too little memory: {error}: make the batch, the samples, the context or the model smaller"
        )
    if isinstance(error, OSError):
        why = error.strerror or " ".join(map(str, error.args))  # a library's may have words alone
        error = UserError(f"{error.filename}: {why}" if error.filename else str(error))
    return str(error) if isinstance(error, UserError) else None


# Where one is closed, as by `>&-`, the next file would get its number, and what libraries print there.
for _name in ("stdin", "stdout", "stderr"):
    if getattr(sys, _name) is None:
        setattr(sys, _name, open(os.devnull, "r+"))

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # no advice to install PyTorch


def _refuse(kind, error, trace):
    """Refuse in one line a variable that JAX, Equinox or jaxtyping cannot read; print other errors."""
    debug = os.environ.get("NANOJAXGPT_DEBUG")
    if debug or kind is not ValueError or not traceback.extract_tb(trace)[-1].filename.endswith("config.py"):
        return sys.__excepthook__(kind, error, trace)
    print(f"error: {error}: change or unset that environment variable", file=sys.stderr)
    os._exit(2)


_program = getattr(sys.modules["__main__"], "__file__", None)
if _program and Path(_program).resolve().parent == Path(__file__).resolve().parents[1]:
    sys.excepthook = _refuse
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # libraries lose a KeyboardInterrupt as they are loaded
