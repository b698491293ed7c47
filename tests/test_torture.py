"""A run that is killed again and again, at random moments, is in the end one that nothing disturbed."""

import signal
import subprocess
import time

import numpy as np
import pytest

from tests.helpers import assert_same_bits, losses, saved_state, start_python

STEPS = 2000  # some seconds of them, about as long as a start
STATUSES = {signal.SIGKILL: {-9}, signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}}
CHANGES = dict(dropout=0.1, max_iters=STEPS, lr_decay_iters=STEPS, eval_interval=100, keep_checkpoints=3)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_killed_at_random_has_the_same_weights_and_losses(tiny, tmp_path):
    """It is killed, stopped and interrupted while it starts, steps, evaluates, saves and resumes."""

    def start(out):
        return start_python("train.py", *tiny(tmp_path / out, **CHANGES, init_from="auto"))

    def end(process, *statuses):
        _, errors = process.communicate()
        assert process.returncode in statuses and "Traceback" not in errors and "error: " not in errors

    begun = time.monotonic()
    end(start("undisturbed"), 0)
    whole_time = time.monotonic() - begun
    draw, signals, status = np.random.default_rng(0), 0, None
    while signals < 20 or status != 0:
        process, number = start("killed"), list(STATUSES)[draw.integers(len(STATUSES))]
        try:
            # Before that, Python may not have read common/errors.py, and prints a Ctrl-C's traceback itself.
            process.wait(timeout=draw.uniform(0.3, 1.1 * whole_time) if signals < 20 else None)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            signals += 1
        end(process, 0, *STATUSES[number])
        status = process.returncode
    assert_same_bits(saved_state(tmp_path / "killed"), saved_state(tmp_path / "undisturbed"))
    assert losses(tmp_path / "killed") == losses(tmp_path / "undisturbed")
