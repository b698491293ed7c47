"""Many processes, each with devices of its own, that train one model together.

    python train.py ... --coordinator=node0:1234 --num_processes=2 --process_id=0       on node0
    python train.py ... --coordinator=node0:1234 --num_processes=2 --process_id=1       on another
    srun python train.py ...                                        a launcher that JAX knows says the rest

Every process runs the same program on the same options: `jax.devices()` are the devices of all, a compiled
step computes on all of them, and each process feeds it the rows of the batch that its devices hold. Process 0
speaks for all of them. docs/hosts.md has the launchers' scripts.
"""

import os
import re
import sys
import time
import traceback
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, MethodType
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from config.command_line import UserError
from config.files import first_line
from config.options import Options

HEARTBEAT = 20  # seconds without a sign of life after which JAX ends the processes that wait for a lost one


@contextmanager
def hosts(options: Options) -> Generator[None]:
    """Within, this process is one of those that run together; if it is the only one, nothing is done.

    Enter it before JAX touches a device. Raises UserError when the options do not say where the others are.
    An error raised within ends this process at once: the others wait for it in their next sum over all
    devices, and an exit in good order would wait for them. They notice that it is gone, and end too.
    """
    connect(options)
    try:
        yield
    except BaseException as error:
        if not jax.distributed.is_initialized():
            raise
        end(error)


def connect(options: Options) -> None:
    """Find the other processes, if there are any, and wait until all are there. Raises UserError."""
    given = (options.coordinator, options.num_processes, options.process_id)
    if given == (None, None, None) and not launched_together(os.environ):
        return
    if given in ((None, None, None), ("auto", None, None)):
        given, method = (None, None, None), None  # JAX asks the launcher
    else:
        check_complete(*given)
        method = "deactivate"
        # JAX aborts when it has waited for five minutes: this line says what for.
        print(f"note: process {given[2]} of {given[1]} waits for the others at {given[0]}", file=sys.stderr)
    try:
        jax.distributed.initialize(
            *given, cluster_detection_method=method, heartbeat_timeout_seconds=HEARTBEAT
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"JAX cannot find the other processes ({error}): give each one --coordinator=host:port, "
            "--num_processes and its --process_id"
        ) from None


def launched_together(environment: Mapping[str, str]) -> bool:
    """Tell whether SLURM, Open MPI or a TPU pod on Kubernetes has started several processes as one job.

    With SLURM, what one `srun` started counts, not what the job may start: a shell in a large job is alone.
    """
    return (
        int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1
        or int(environment.get("OMPI_COMM_WORLD_SIZE", 1)) > 1
        or "," in environment.get("TPU_WORKER_HOSTNAMES", "")
    )


def check_complete(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Raise UserError for options that leave open, or contradict, who the processes are."""
    if coordinator == "auto":
        raise UserError("coordinator=auto asks the launcher: drop --num_processes and --process_id")
    if coordinator is None or num_processes is None or process_id is None:
        given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
        missing = [f"--{name}" for name, value in given.items() if value is None]
        raise UserError(f"{' and '.join(missing)} must be given too: many processes need all three")
    if process_id >= num_processes:
        raise UserError(
            f"process_id={process_id} must be below num_processes={num_processes}: they count from 0"
        )


def end(error: BaseException) -> NoReturn:
    """Say what went wrong in this process and end it, without the exit handlers that wait for the others."""
    status = 1
    if is_of_lost_process(error):
        why = first_line(error)
        text = f"another process is gone ({why}): see what it said, then start all with --init_from=resume"
    elif isinstance(error, UserError):
        text, status = str(error), 2
    elif isinstance(error, KeyboardInterrupt):
        text, status = "interrupted", 130
    else:
        text = "".join(traceback.format_exception(error))
    try:
        text = f"process {jax.process_index()}: {text}"
    except (RuntimeError, AssertionError):  # JAX finds no device, which is the error
        pass
    print(f"error: {text}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    time.sleep(2)  # the others, where they have found the same error, say it before they miss this process
    os._exit(status)


def is_of_lost_process(error: BaseException) -> bool:
    """Tell whether an error says that another process cannot be reached."""
    return re.search("Gloo|NCCL|heartbeat|[Cc]oordination service", str(error)) is not None


def agree_on(options: Options) -> None:
    """Let only process 0 print from here on. Raises UserError when a process has other options."""
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")
    elif jax.process_count() > 1:  # JAX may end a process in the middle of a sum, with words of its own
        note = "when one is lost, JAX ends all: then start all with --init_from=resume"
        print(f"note: {jax.process_count()} processes run together; {note}", file=sys.stderr)
    check_same(**{name: value for name, value in options.to_json().items() if name != "process_id"})


def check_same(**values) -> None:
    """Raise UserError for the first of these that is not the same in all processes."""
    if jax.process_count() == 1:
        return
    here = np.array([zlib.crc32(repr(value).encode()) for value in values.values()], np.uint32)
    everywhere = multihost_utils.process_allgather(here)  # (processes, values)
    for name, different in zip(values, (everywhere != everywhere[0]).any(axis=0), strict=True):
        if different:
            raise UserError(
                f"{name} is not the same in all processes, here it is {str(values[name])[:200]}: "
                "start all with the same options, on folders that all share"
            )


def on_process_0(act: FunctionType | MethodType, *arguments) -> None:
    """Have process 0 call a function, while the others wait for its end."""
    if jax.process_index() == 0:
        act(*arguments)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(act.__name__)


def shared(folder: Path) -> bool:
    """Tell whether all processes see what process 0 writes into a folder. Raises UserError if it cannot."""
    if jax.process_count() == 1:
        return True
    sign = folder / f".{multihost_utils.broadcast_one_to_all(np.int32(time.time()))}.tmp"
    on_process_0(write_sign, sign)
    seen = multihost_utils.process_allgather(np.array(sign.exists()))
    on_process_0(sign.unlink)
    return bool(seen.all())


def write_sign(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)  # a link with this name would be followed
    except OSError as error:
        raise UserError(
            f"{path.parent}: cannot be written ({error.strerror}): choose another --out_dir"
        ) from None
