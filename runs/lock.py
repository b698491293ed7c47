"""A run's lock: while one program trains in an out_dir, no other can.

The kernel holds it, on a local disk and over NFS, and lets it go when the program ends, however it ends.
"""

import errno
import json
import os
import platform
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from config.command_line import UserError
from config.files import check_regular, read_json, write_whole
from parallel.hosts import on_process_0

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # as the file system of a bucket may say


@contextmanager
def locked(out_dir: str) -> Generator[None]:
    """Within, no other program can hold the lock of `out_dir`; of many processes, process 0 holds it for all.

    Raises UserError when another program has it, saying which and since when, or `out_dir` cannot be written.
    """
    folder = Path(out_dir)
    existed = folder.exists()
    lock = FileLock(folder / "lock", timeout=0, fallback_to_soft=False)
    try:
        on_process_0(acquire, lock, folder)
        yield
    finally:
        if lock.is_locked:
            # While the lock is held: a program that opens the file meanwhile finds that it is deleted.
            for path in (holder_file(folder), folder / "lock"):
                with suppress(OSError):
                    path.unlink()
            if not existed:
                with suppress(OSError):
                    folder.rmdir()  # succeeds for a run that has not begun to write
            lock.release()


def acquire(lock: FileLock, folder: Path) -> None:
    """Take the lock and note who holds it. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            check_regular(lock.lock_file, os.lstat(lock.lock_file), os.O_RDWR)
        lock.acquire()
    except Timeout:
        raise UserError(
            f"out_dir={folder} is in use: {holder(folder)} trains there: "
            "choose another --out_dir, or stop that run first"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise UserError(
                f"{folder}: cannot be written ({error.strerror}): choose another --out_dir"
            ) from None
        print(f"note: {folder}: this file system has no locks: start no other run there", file=sys.stderr)
        return
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    values = {"process": os.getpid(), "host": platform.node(), "since": since}
    write_whole(holder_file(folder), json.dumps(values) + "\n")


def holder_file(folder: Path) -> Path:
    """Return the file that names the lock's holder: Windows lets nobody read a file that is locked."""
    return folder / "lock.json"


def holder(folder: Path) -> str:
    try:
        return "process {process} on {host} (since {since})".format(**read_json(holder_file(folder)))
    except (ValueError, KeyError, TypeError, UserError):  # it is being written, or damaged
        return "another program"
