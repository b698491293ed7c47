"""A thread in each of many processes that notices when another is lost, and says which.

Without it a process waits in a sum over all devices until the network or JAX gives up, up to a minute later
and without a name. Every process counts up in the store that JAX's processes share, which process 0 keeps.
Process 0 looks whether all counts go on, and the others look whether it has named a process whose count does
not. When process 0 itself is lost, JAX aborts the others at once, with words of its own.
"""

import os
import sys
import threading
import time
from typing import NoReturn

from jax._src import distributed  # the store has no public name; Orbax reaches it in the same way
from jax.errors import JaxRuntimeError

BEAT = 1  # seconds between two counts
LOST = 10  # seconds without a new count after which a process counts as lost
COUNTS, NAMED = "watch/counts/", "watch/lost"  # keys of the store


class Watch(threading.Thread):
    """Ends this process with one line when another is lost, until `stop` or `give_up` is called."""

    def __init__(self):
        super().__init__(daemon=True)
        state = distributed.global_state
        assert state.client is not None, "jax.distributed.initialize has been called"
        self.store, self.process, self.processes = state.client, state.process_id, state.num_processes
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        begun, beat = time.monotonic(), 0
        seen = {process: ("", begun) for process in range(self.processes)}  # its count, and since when
        while not self.over.wait(BEAT):
            beat += 1
            try:
                self.put(f"{COUNTS}{self.process}", str(beat))
                lost = self.find_lost(seen) if self.process == 0 else self.named()
            except JaxRuntimeError:  # nobody keeps the store
                lost = 0
            if lost is not None and not self.over.is_set():
                self.end(lost)

    def find_lost(self, seen: dict[int, tuple[str, float]]) -> int | None:
        """Return a process whose count stands still; None if there is none."""
        now = time.monotonic()
        for key, count in self.store.key_value_dir_get(COUNTS):
            process = int(key.rpartition("/")[2])
            if seen[process][0] != count:
                seen[process] = count, now
        return next((p for p, (count, at) in seen.items() if count != "done" and now - at > LOST), None)

    def named(self) -> int | None:
        """Return the process that has been named as lost; None if there is none."""
        named = self.store.key_value_dir_get(NAMED)
        return int(named[0][1]) if named else None

    def put(self, key: str, value: str) -> None:
        self.store.key_value_set(key, value, allow_overwrite=True)

    def end(self, lost: int) -> NoReturn:
        print(
            f"error: process {self.process}: process {lost} is gone: see what it said, "
            "then start all with --init_from=resume",
            file=sys.stderr,
            flush=True,
        )
        self.give_up(1, lost)

    def give_up(self, status: int, lost: int) -> NoReturn:
        """Name the lost process to the others, this one perhaps, and end this one.

        Exit handlers are left out: they would wait for the others.
        """
        self.over.set()
        sys.stdout.flush()
        try:
            self.put(f"{NAMED}/{lost}", str(lost))
            if self.process == 0:
                time.sleep(3 * BEAT)  # the store ends with process 0: first the others read it
        except JaxRuntimeError:  # nobody keeps the store
            pass
        os._exit(status)

    def stop(self) -> None:
        """End the watch in good order: the others no longer expect this process to count."""
        self.over.set()
        self.join()  # or a last count could come after this word
        try:
            self.put(f"{COUNTS}{self.process}", "done")
        except JaxRuntimeError:  # process 0 has ended before
            pass
