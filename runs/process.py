"""The process that trains: it locks the folder of its run, and saves and ends when it is told to stop."""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import jax
from filelock import FileLock, Timeout
from jax.experimental.multihost_utils import reached_preemption_sync_point

from common.errors import UserError
from common.files import check_writable
from parallel.machines import on_process_0

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # the file system of a bucket may answer so
SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none


@contextmanager
def locked(out_dir: str) -> Generator[None]:
    """Within, process 0 of this run holds the lock of `out_dir`. Raises UserError when another run does."""
    folder = Path(out_dir)
    lock = FileLock(folder / "lock", timeout=0, fallback_to_soft=False)
    try:
        on_process_0(acquire, lock, folder)
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                (folder / "lock").unlink()  # while it is held: another program that has it open notices
                folder.rmdir()  # succeeds for a run that has not begun to write
            lock.release()


def acquire(lock: FileLock, folder: Path) -> None:
    """Take the lock, which ends with the program. Raises UserError, or OSError where it could not save."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UserError(f"out_dir={folder} is in use by another run: choose another, or stop it") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        print(f"note: {folder}: this file system has no locks: start no other run there", file=sys.stderr)
    for of_a_killed_save in folder.glob("checkpoints/*.orbax-checkpoint-tmp"):
        shutil.rmtree(of_a_killed_save, ignore_errors=True)
    if os.path.lexists(folder / "checkpoints"):
        check_writable(folder / "checkpoints" / "new")


def say(text: str) -> None:
    """Print a line at once. A reader that has closed, as `tee` does at Ctrl-C, is as a terminal that has."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if SIGHUP:
            signal.raise_signal(SIGHUP)


@contextmanager
def stop_signals() -> Generator[Callable[[], int]]:
    """Within, SIGINT, SIGTERM and SIGHUP only make the function yielded return 128 + their number, not 0.

    A second SIGINT or SIGTERM ends the run; a terminal that closes sends SIGHUP several times, which stays
    ignored under nohup. JAX tells all of many processes at the same call: all call equally often.
    """
    together = jax.process_count() > 1
    calls = count(1)
    received = []
    agreed = [] if together else received

    def receive(number, frame):
        if received and number != SIGHUP:
            raise KeyboardInterrupt
        received.append(number)
        # Not with print, which the signal may have interrupted.
        for stream, text in {1: b"", 2: b"\nstopping after this step\n"}.items():
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

    ours = [signal.SIGINT, SIGHUP] if together else [signal.SIGINT, SIGHUP, signal.SIGTERM]
    # nohup ignores SIGHUP, a script SIGINT for what it starts with `&`: Ctrl-C is for another command then.
    ours = [number for number in ours if number and signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, receive) for number in ours}
    try:
        yield stop_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
