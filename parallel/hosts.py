"""Many processes, each with devices of its own, that train one model together.

    python train.py ... --coordinator=node0:1234 --num_processes=2 --process_id=0       on node0
    python train.py ... --coordinator=node0:1234 --num_processes=2 --process_id=1       on another
    srun python train.py ... --coordinator=auto         JAX asks SLURM, Open MPI, Kubernetes or a TPU pod

All run the same program with the same options. Process 0 prints and writes for all.
"""

import os
import re
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from config.command_line import UserError, in_one_line
from config.files import first_line, write_whole
from config.options import Options

HEARTBEAT = 20  # seconds until JAX gives up on a silent process, and ends the others


@contextmanager
def hosts(options: Options) -> Generator[None]:
    """Connect to the other processes, if there are any, before JAX touches a device. Raises UserError.

    An error ends this process at once: an ordinary exit would wait for the others.
    """
    connect(options)
    try:
        yield
    except BaseException as error:
        if not jax.distributed.is_initialized():
            raise
        abort(error)


def connect(options: Options) -> None:
    """Wait until all processes have started. Raises UserError."""
    address, n, i = where = (options.coordinator, options.num_processes, options.process_id)
    if where == (None, None, None):
        return
    ask_launcher = where == ("auto", None, None)
    if not ask_launcher:  # JAX aborts after five minutes; this line says what it waits for
        print(f"note: process {i} of {n} waits for the others at {address}", file=sys.stderr)
    try:
        jax.distributed.initialize(
            None if address == "auto" else address,
            num_processes=n,
            process_id=i,
            cluster_detection_method=None if ask_launcher else "deactivate",
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"JAX cannot find the other processes ({error}): give each one --coordinator=host:port, "
            "--num_processes and its --process_id, all three, or --coordinator=auto alone to ask the launcher"
        ) from None


def abort(error: BaseException) -> NoReturn:
    """Print why this process ends, and end it without exit handlers."""
    status = 1
    if re.search("Gloo|NCCL|heartbeat|[Cc]oordination service", str(error)):
        why = first_line(error)
        text = f"another process is gone ({why}): see what it said, then start all with --init_from=resume"
    elif isinstance(error, KeyboardInterrupt):
        text, status = "interrupted", 130
    elif line := in_one_line(error):
        text, status = line, 2
    else:
        text = "".join(traceback.format_exception(error))
    with suppress(RuntimeError, AssertionError):  # JAX finds no device, which is the error
        text = f"process {jax.process_index()}: {text}"
    print(f"error: {text}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    time.sleep(2)  # other processes with the same error print theirs before they miss this one
    os._exit(status)


def agree_on(options: Options) -> None:
    """Silence all processes but 0. Raises UserError where the processes have different options."""
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")
    check_same(**{name: value for name, value in vars(options).items() if name != "process_id"})


def check_same(**values) -> None:
    """Raise UserError for the first value that is not the same in all processes."""
    if jax.process_count() == 1:
        return
    checksums = np.array([zlib.crc32(repr(value).encode()) for value in values.values()], np.uint32)
    gathered = multihost_utils.process_allgather(checksums)  # (processes, values)
    for name, different in zip(values, (gathered != gathered[0]).any(axis=0), strict=True):
        if different:
            raise UserError(
                f"{name} is not the same in all processes, here it is {str(values[name])[:200]}: "
                "start all with the same options, on folders that all share"
            )


def on_process_0(act: Callable, *arguments) -> None:
    """Call a function on process 0, while the others wait for its end."""
    if jax.process_index() == 0:
        act(*arguments)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("process 0 has acted")


def shared(folder: Path) -> bool:
    """Tell whether all processes see what process 0 writes into a folder. Raises UserError if it cannot."""
    if jax.process_count() == 1:
        return True
    mark = folder / f".seen-{multihost_utils.broadcast_one_to_all(np.int32(time.time()))}.tmp"
    on_process_0(write_whole, mark, "")
    seen = multihost_utils.process_allgather(np.array(mark.exists()))
    on_process_0(mark.unlink)
    return bool(seen.all())
