"""Run one of the project's scripts as a process of its own, and pass on a request to stop."""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 100  # seconds that a script gets to save and end, when an exception ends its caller

Stop = Literal["interrupt", "time"]


def run_script(
    script: str, words: list[str], cwd: Path | None = None, seconds: float = math.inf
) -> tuple[int, Stop | None]:
    """Run a script with the options `words` to its end.

    Return its status, which is negative if a signal killed it, and why it was stopped, if it was. Ctrl-C, the
    end of `seconds`, and any other exception, which is raised again, reach it as SIGTERM, on which train.py
    saves a checkpoint and ends with status 143. No script outlives its caller.
    """
    command = [sys.executable, str(ROOT / script), *words]
    process, deadline, stop = None, time.monotonic() + seconds, None
    try:
        while True:
            try:
                if process is None:
                    with signals_held_back():
                        process = subprocess.Popen(command, cwd=cwd)
                left = None if deadline == math.inf else max(0, deadline - time.monotonic())
                return process.wait(left), stop
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
                if process is None:
                    raise
                deadline, stop = math.inf, "interrupt" if isinstance(why, KeyboardInterrupt) else "time"
                process.terminate()
    except BaseException:
        if process is not None:
            try:
                process.terminate()
                process.wait(PATIENCE)
            finally:
                process.kill()  # does nothing if it has ended
                process.wait()
        raise


@contextmanager
def signals_held_back() -> Generator[None]:
    """Hold back signals that raise exceptions until the end, when there is a script to end.

    A script that is started within has SIGINT blocked, which a terminal sends to it as well: train.py ends
    without saving at its second signal.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    came = []
    numbers = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)  # SIGUSR1 is Modal's: an input is cancelled
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            handlers[number](number, None)
