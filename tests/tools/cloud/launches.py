"""The tests of launches at Modal share this; conftest.py has their fixtures."""

import subprocess
from pathlib import Path

import pytest

from tests.helpers import newest_checkpoint

LONG = {"max_iters": 600, "eval_interval": 50, "log_interval": 100, "lr_decay_iters": 600}


def namespaces(*kinds: str) -> bool:
    return subprocess.run(["unshare", *kinds, "true"], capture_output=True).returncode == 0


containers = pytest.mark.skipif(not namespaces("-rm"), reason="needs Linux's mount namespaces")


def remote(tiny, **changes) -> list[str]:
    """The words of a tiny run at Modal, whose out_dir is `run` and whose data are in the Volume."""
    return ["run", "app.py", "--run-on-remote", *tiny("run", **{"dataset": "tiny"} | changes)]


def errors(printed: str) -> list[str]:
    """The lines of error among what a command printed: Modal's own begin with "Error"."""
    assert "Traceback" not in printed
    return [line for line in printed.splitlines() if line.lower().startswith("error: ")]


def first_checkpoint(volume: Path) -> bool:
    return newest_checkpoint(volume / "run") > 0
