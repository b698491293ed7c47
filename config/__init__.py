"""The options of every command, their readers, and a file for each experiment that sets them.

`options.py` has those of train.py, `command_line.py` reads every command's, `files.py` opens and writes
files, and `devices.csv` has GPUs and TPUs. The other files are experiments.

A command imports this first, so that an error while JAX is imported, which takes seconds, is one line, too.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("error: this Python is older than 3.11: make .venv anew with Python 3.11, 3.12 or 3.13")

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
