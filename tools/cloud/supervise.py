"""Run one of the project's scripts in a process, and pass on a request to stop."""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 100  # seconds that a script gets to save and end, when an exception ends its caller


def run_script(script: str, words: list[str], seconds: float = math.inf) -> tuple[int, str | None]:
    """Run a script to its end. Return its status, and why it was stopped: "interrupt", "time" or None.

    Ctrl-C, the end of `seconds`, and any other exception (raised again) reach it as SIGTERM, on which
    train.py saves a checkpoint and ends with status 143.
    """
    command = [sys.executable, str(ROOT / script), *words]
    process, stop, deadline = None, None, time.monotonic() + seconds
    try:
        while True:
            try:
                if process is None:
                    with sigint_blocked():
                        process = subprocess.Popen(command)
                left = None if deadline == math.inf else max(0, deadline - time.monotonic())
                return process.wait(left), stop
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
                if process is None:
                    raise
                deadline, stop = math.inf, "interrupt" if isinstance(why, KeyboardInterrupt) else "time"
                process.terminate()
    finally:  # nothing happens to a script that has ended
        if process is not None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()
            process.wait()


@contextmanager
def sigint_blocked() -> Generator[None]:
    """Hide a terminal's SIGINT from a script: at its second signal train.py ends without saving."""
    windows = not hasattr(signal, "pthread_sigmask")
    mask = None if windows else signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
