"""Run one of the project's scripts in a process, and pass on a request to stop."""

import math
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 100  # seconds that a script gets to save and end, when an exception ends its caller
HAS_MASK = hasattr(signal, "pthread_sigmask")  # not on Windows


def run_script(script: str, words: list[str], seconds: float = math.inf) -> tuple[int, str | None]:
    """Run a script to its end. Return its status, and why it was stopped: "interrupt", "time" or None.

    Ctrl-C, the end of `seconds`, and any other exception (raised again) reach it as SIGTERM, on which
    train.py saves a checkpoint and ends with status 143.
    """
    stop, deadline = None, time.monotonic() + seconds
    # A terminal sends it to the script too: at its second signal train.py does not save.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if HAS_MASK else set()
    process = subprocess.Popen([sys.executable, str(ROOT / script), *words])
    try:
        while True:
            try:
                if HAS_MASK:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                left = None if deadline == math.inf else max(0, deadline - time.monotonic())
                return process.wait(left), stop
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
                deadline, stop = math.inf, "interrupt" if isinstance(why, KeyboardInterrupt) else "time"
                process.terminate()
    finally:  # nothing happens to a script that has ended
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        process.kill()
        process.wait()
