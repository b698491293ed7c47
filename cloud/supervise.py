"""Runs one of our scripts as a process of its own, and passes on to it that it is to stop."""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
INTERVAL = 10  # seconds between calls of `meanwhile`


def run(
    script: str,
    words: list[str],
    cwd: Path | None = None,
    seconds: float = math.inf,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[int, Literal["interrupt", "time"] | None]:
    """Run a script to its end. Returns its status, negative if a signal killed it, and why it was stopped.

    Ctrl-C, and the end of `seconds`, reach it as SIGTERM, on which train.py saves a checkpoint and ends.
    """
    # A terminal sends Ctrl-C to the script as well, and at its second signal train.py ends and saves nothing.
    # So the script inherits a mask without SIGINT, and no SIGINT is lost here until it can be passed on.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process = subprocess.Popen([sys.executable, str(ROOT / script), *words], cwd=cwd)
    deadline, stop = time.monotonic() + seconds, None
    while True:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return process.wait(max(0, min(INTERVAL, deadline - time.monotonic()))), stop
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                deadline, stop = math.inf, "time"
                process.terminate()
            meanwhile()
        except KeyboardInterrupt:
            stop = "interrupt"
            process.terminate()
