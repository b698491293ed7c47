"""Run one of the project's scripts as a process of its own, and pass on a request to stop."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 100  # seconds that a script gets to save and end, when an exception ends its caller

Stop = Literal["interrupt", "time"]


def run_script(
    script: str,
    words: list[str],
    cwd: Path | None = None,
    seconds: float = math.inf,
    environment: dict[str, str] | None = None,
) -> tuple[int, Stop | None]:
    """Run a script with the options `words` to its end.

    Return its status, which is negative if a signal killed it, and why it was stopped, if it was. Ctrl-C, and
    the end of `seconds`, reach it as SIGTERM, on which train.py saves a checkpoint and ends with status 143.
    Any other exception, such as the one with which Modal cancels an input, ends the script in the same way
    and goes on up: no script outlives its caller. `environment` is added to this process's own.
    """
    # A terminal sends Ctrl-C to the script as well, and train.py ends without saving at its second signal. So
    # SIGINT is blocked while the script starts: the script inherits that, and a SIGINT waits here until there
    # is a script to pass it on to. So does the SIGUSR1 by which Modal's client cancels an input.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
    process = subprocess.Popen(
        [sys.executable, str(ROOT / script), *words], cwd=cwd, env=os.environ | (environment or {})
    )
    deadline, stop = time.monotonic() + seconds, None
    try:
        while True:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                return process.wait(
                    None if deadline == math.inf else max(0, deadline - time.monotonic())
                ), stop
            except subprocess.TimeoutExpired:
                deadline, stop = math.inf, "time"
                process.terminate()
            except KeyboardInterrupt:
                stop = "interrupt"
                process.terminate()
    except BaseException:
        end(process)
        raise


def end(process: subprocess.Popen) -> None:
    """Have a script save and end; kill it if it does not, or if there is no time for that."""
    try:
        process.terminate()
        process.wait(PATIENCE)
    finally:
        process.kill()  # nothing, where it has ended
        process.wait()
