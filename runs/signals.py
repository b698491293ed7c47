"""Ctrl-C and SIGTERM: a run that is asked to stop finishes its step, saves a checkpoint and ends in order."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

import jax
from jax.experimental.multihost_utils import reached_preemption_sync_point


@contextmanager
def stop_signals() -> Generator[Callable[[int], bool]]:
    """Within, SIGINT and SIGTERM only make the function yielded true; a second one ends the run at once.

    It takes the iteration. Of many processes, one signalled makes it true in all of them at the same
    iteration: JAX catches SIGTERM and tells the others, and SIGINT is passed on to it as SIGTERM.
    """
    received, together = [], jax.process_count() > 1

    def receive(number, frame):
        if received:
            raise KeyboardInterrupt
        received.append(number)
        os.write(2, b"\nstopping after this step: a checkpoint is saved\n")  # print may be at work right now
        if together:
            signal.raise_signal(signal.SIGTERM)

    ours = (signal.SIGINT,) if together else (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, receive) for number in ours}
    try:
        yield reached_preemption_sync_point if together else lambda i: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
