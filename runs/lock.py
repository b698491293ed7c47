"""A run's lock: while one program trains in an out_dir, no other can. It ends with the program, however."""

import errno
import os
import platform
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from config.command_line import UserError
from config.files import check_regular, first_line, read_text, write_whole
from parallel.hosts import on_process_0

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # as the file system of a bucket may say


@contextmanager
def locked(out_dir: str) -> Generator[None]:
    """Within, this run holds the lock of `out_dir`, by process 0. Raises UserError when another one does."""
    folder = Path(out_dir)
    existed = folder.exists()
    lock = FileLock(folder / "lock", timeout=0, fallback_to_soft=False)
    holder = folder / "lock.txt"  # names the holder: Windows lets nobody read a file that is locked
    try:
        on_process_0(acquire, lock, holder)
        yield
    finally:
        if lock.is_locked:
            # While the lock is held: a program that opens the file meanwhile finds that it is deleted.
            for path in (holder, folder / "lock"):
                with suppress(OSError):
                    path.unlink()
            if not existed:
                with suppress(OSError):
                    folder.rmdir()  # succeeds for a run that has not begun to write
            lock.release()


def acquire(lock: FileLock, holder: Path) -> None:
    """Take the lock and note who holds it. Raises UserError."""
    folder = holder.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            check_regular(lock.lock_file)
        lock.acquire()
    except Timeout:
        by = "another program"
        with suppress(OSError, ValueError, UserError):  # it is being written, or damaged
            by = first_line(ValueError(read_text(holder)))
        raise UserError(
            f"out_dir={folder} is in use by {by}: choose another --out_dir, or stop that run first"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise UserError(
                f"{folder}: cannot be written ({error.strerror}): choose another --out_dir"
            ) from None
        print(f"note: {folder}: this file system has no locks: start no other run there", file=sys.stderr)
        return
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    write_whole(holder, f"process {os.getpid()} on {platform.node()} (since {since})\n")
