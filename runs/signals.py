"""Ctrl-C, SIGTERM and SIGHUP: a run that is asked to stop finishes its step, saves a checkpoint and ends."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count

import jax
from jax.experimental.multihost_utils import reached_preemption_sync_point

SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none


@contextmanager
def stop_signals(saves: bool = True) -> Generator[Callable[[], int]]:
    """Within, SIGINT, SIGTERM and SIGHUP only make the function yielded return 128 + their number, not 0.

    A second SIGINT or SIGTERM ends the run; a terminal that closes sends SIGHUP several times. SIGHUP stays
    ignored where it was, as under nohup. Of many processes, JAX tells all at the same call: they have to call
    equally often. `saves` is for the notice to the user.
    """
    notice = b"\nstopping after this step: a checkpoint is saved\n" if saves else b"\nstopping\n"
    received, calls, together = [], count(1), jax.process_count() > 1
    agreed = [] if together else received

    def receive(number, frame):
        if received:
            if number == SIGHUP:
                return
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
    if SIGHUP and signal.getsignal(SIGHUP) != signal.SIG_IGN:
        ours.append(SIGHUP)
    before = {number: signal.signal(number, receive) for number in ours}
    try:
        yield stop_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
