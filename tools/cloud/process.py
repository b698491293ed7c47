"""Run a command of the project in a process of its own, here or in a container."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path

from tools.cloud import ROOT

PATIENCE = 100  # seconds that a command gets to save and end, when an exception ends its caller
HAS_MASK = hasattr(signal, "pthread_sigmask")  # not on Windows


def python(command: list[str]) -> list[str]:
    """Return the words that start a command of the project, in whatever folder."""
    return [sys.executable, str(ROOT / command[0]), *command[1:]]


def run_command(command: list[str], seconds: float = inf, folder: Path | None = None) -> tuple[int, bool]:
    """Run a command to its end. Return its status, and whether a Ctrl-C stopped it.

    Ctrl-C, the end of `seconds`, and any other exception (raised again) reach it as SIGTERM, on which
    train.py saves a checkpoint and ends with status 143.
    """
    interrupted, deadline = False, time.monotonic() + seconds
    # A terminal sends it to the command too: at its second signal train.py does not save.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if HAS_MASK else set()
    process = subprocess.Popen(python(command), cwd=folder)
    try:
        while True:
            try:
                if HAS_MASK:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                left = None if deadline == inf else max(0, deadline - time.monotonic())
                return process.wait(left), interrupted
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
                deadline, interrupted = inf, isinstance(why, KeyboardInterrupt)
                process.terminate()
    finally:  # nothing happens to a command that has ended
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        process.kill()
        process.wait()
