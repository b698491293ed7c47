"""The tests of launches, here and at Modal, share this; conftest.py has their fixtures."""

import subprocess

LONG = {"max_iters": 600, "eval_interval": 50, "log_interval": 100, "lr_decay_iters": 600}


def namespaces(*kinds: str) -> bool:
    return subprocess.run(["unshare", *kinds, "true"], capture_output=True).returncode == 0
