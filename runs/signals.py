"""Ctrl-C, SIGTERM and SIGHUP: a run that is asked to stop finishes its step, saves a checkpoint and ends."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count

import jax
from jax.experimental.multihost_utils import reached_preemption_sync_point


@contextmanager
def stop_signals(saves: bool = True) -> Generator[Callable[[], int]]:
    """Within, SIGINT, SIGTERM and SIGHUP only make the function yielded return a status.

    A second SIGINT or SIGTERM ends the run. A second SIGHUP does not: a terminal that closes sends several.
    SIGHUP stays ignored where it was, as under nohup. `saves` tells whether a checkpoint is saved then, for
    the line that says what happens.

    The status is 128 + the signal's number, and 0 before one comes. With many processes, a signal to one
    makes it SIGTERM's in all of them, at the same call; so all have to call it equally often. JAX catches
    SIGTERM and tells the others; the other two are passed on to JAX as SIGTERM.
    """
    notice = b"\nstopping after this step: a checkpoint is saved\n" if saves else b"\nstopping\n"
    received, calls, together = [], count(1), jax.process_count() > 1
    agreed = [] if together else received
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none

    def receive(number, frame):
        if received and number == hangup:
            return
        if received:
            raise KeyboardInterrupt
        received.append(number)
        for stream, text in ((1, b""), (2, notice)):  # by os.write: print may be at work right now
            try:
                os.write(stream, text)
            except OSError:  # a terminal that has closed, where the next print would end the run unsaved
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if together:
            signal.raise_signal(signal.SIGTERM)

    def stop_asked() -> int:
        if together and reached_preemption_sync_point(next(calls)):
            agreed.append(signal.SIGTERM)
        return 128 + agreed[0] if agreed else 0

    ours = [signal.SIGINT] if together else [signal.SIGINT, signal.SIGTERM]
    if hangup and signal.getsignal(hangup) != signal.SIG_IGN:
        ours.append(hangup)
    before = {number: signal.signal(number, receive) for number in ours}
    try:
        yield stop_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
