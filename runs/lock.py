"""A run's lock: while one program trains in an out_dir, no other can.

The kernel holds it and lets it go when the program ends, however it ends, on a local disk and over NFS. Some
file systems, of buckets for instance, have no locks, or one for each machine. So the holder also counts up in
the lock's file, and a program on another machine first looks whether the count goes on.
"""

import fcntl
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from config.command_line import UserError
from config.files import open_file, read_json
from parallel.hosts import on_process_0

BEAT = 5  # seconds between two counts
WATCH = 20  # seconds in which a program that still runs has counted


@contextmanager
def locked(out_dir: str) -> Generator[None]:
    """Within, no other program can hold the lock of `out_dir`; of many processes, process 0 holds it for all.

    Raises UserError when another program has it, saying which and since when, or `out_dir` cannot be written.
    """
    lock = Lock(Path(out_dir))
    on_process_0(lock.acquire)
    try:
        yield
    finally:
        lock.release()


class Lock:
    """The lock of a folder, which is its file `lock`. It is released with its process at the latest."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "lock"
        self.file: IO[str] | None = None
        self.created = False
        self.over = threading.Event()
        self.holder = {
            "process": os.getpid(),
            "host": platform.node(),
            "boot": boot_id(),  # tells machines apart that have the same name
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }

    def acquire(self) -> None:
        """Take the lock. Raises UserError."""
        try:
            self.created = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            while (file := self.open()) is None:
                pass
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be written ({error.strerror}): choose another --out_dir"
            ) from None
        self.file = file
        self.count(file, 0)
        threading.Thread(target=self.count_on, args=(file,), daemon=True).start()

    def open(self) -> IO[str] | None:
        """Return the lock's file, locked; None when its holder has deleted it meanwhile."""
        file = open_file(self.path, "a+")
        kernel_knows = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self.held(self.read()) from None
        except OSError:
            kernel_knows = False  # a file system without locks
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                self.check_count(kernel_knows)
                return file
        return None

    def check_count(self, kernel_knows: bool) -> None:
        """Raise UserError when a program still counts in the file that the kernel cannot know of."""
        holder = self.read()
        if not holder or kernel_knows and holder.get("boot") == self.holder["boot"]:
            return  # a program of this machine, which the kernel says has ended
        print(
            f"note: {self.path}: looks for {WATCH} s whether {described(holder)} still runs", file=sys.stderr
        )
        for _ in range(WATCH):
            time.sleep(1)
            if (now := self.read()) and now != holder:
                raise self.held(now)

    def read(self) -> dict:
        """Return what the file says of its holder; nothing when it is being written, or damaged."""
        try:
            holder = read_json(self.path)
        except (ValueError, UserError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def held(self, holder: dict) -> UserError:
        return UserError(
            f"out_dir={self.folder} is in use: {described(holder)} trains there: "
            "choose another --out_dir, or stop that run first"
        )

    def count(self, file: IO[str], n: int) -> None:
        with suppress(OSError):  # of a full disk: the kernel's lock holds
            file.seek(0)
            file.truncate()
            file.write(json.dumps(self.holder | {"count": n}) + "\n")
            file.flush()
            os.fsync(file.fileno())  # for those that look from another machine

    def count_on(self, file: IO[str]) -> None:
        n = 0
        while not self.over.wait(BEAT):
            n += 1
            self.count(file, n)

    def release(self) -> None:
        """Let the lock go, and leave no trace of it."""
        if self.file is None:
            return
        self.over.set()
        with suppress(OSError):
            self.path.unlink()
            if self.created:
                self.folder.rmdir()  # succeeds for a run that has not begun to write
        self.file.close()
        self.file = None


def described(holder: dict) -> str:
    if not holder:
        return "another program"
    return f"process {holder.get('process')} on {holder.get('host')} (since {holder.get('since')})"


def boot_id() -> str:
    """Return what tells this boot of this machine from any other; its name where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
