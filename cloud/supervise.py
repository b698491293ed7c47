"""Run one of the project's scripts as a process of its own, and pass on a request to stop."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]


def run_script(
    script: str,
    words: list[str],
    cwd: Path | None = None,
    seconds: float = math.inf,
) -> tuple[int, Literal["interrupt", "time"] | None]:
    """Run a script with the options `words` to its end.

    Return its status, which is negative if a signal killed it, and why it was stopped, if it was. Ctrl-C, and
    the end of `seconds`, reach it as SIGTERM, on which train.py saves a checkpoint and ends with status 143.
    """
    # A terminal sends Ctrl-C to the script as well, and train.py ends without saving at its second signal. So
    # SIGINT is blocked while the script starts: the script inherits that, and a SIGINT waits here until there
    # is a script to pass it on to.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process = subprocess.Popen([sys.executable, str(ROOT / script), *words], cwd=cwd)
    deadline, stop = time.monotonic() + seconds, None
    while True:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return process.wait(None if deadline == math.inf else max(0, deadline - time.monotonic())), stop
        except subprocess.TimeoutExpired:
            deadline, stop = math.inf, "time"
            process.terminate()
        except KeyboardInterrupt:
            stop = "interrupt"
            process.terminate()
