"""The machines that compute: their processes, their devices, and how XLA compiles for these.

    python train.py ... --coordinator=node0:1234 --num_processes=2 --process_id=0       on node0
    python train.py ... --coordinator=node0:1234 --num_processes=2 --process_id=1       on another
    srun python train.py ... --coordinator=auto         JAX asks SLURM, Open MPI, Kubernetes or a TPU pod

All processes run the same program with the same options. Process 0 prints and writes for all.
"""

import ctypes
import importlib.util
import os
import platform
import re
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from common.devices import cpu_flags
from common.errors import UserError, in_one_line
from common.files import cache_folder, first_line, write_whole
from parallel.mesh import make_mesh

# The user's variables would make a run's arrays others, or end it with a traceback.
SAME_EVERYWHERE = {
    "jax_enable_x64": False,
    "jax_disable_jit": False,  # without jit nothing can be compiled beforehand
    "jax_numpy_rank_promotion": "allow",
    "jax_numpy_dtype_promotion": "standard",
    "jax_transfer_guard": "allow",
    "jax_default_prng_impl": "threefry2x32",
}
OF_ONE = ("process_id", "wandb_run_name")  # nanoGPT's configs put the time into the name of process 0's page
HEARTBEAT = 20  # seconds until JAX gives up on a silent process, and ends the others


@contextmanager
def on_devices(options: Any) -> Generator[None]:
    """Within, all processes compute together on the device mesh. Raises UserError.

    Of several processes, one with an error ends at once: an ordinary exit would wait for the others.
    """
    if options.compilation_cache:
        keep_compiled_programs()
    connect(options)
    try:
        choose_device(options.device, getattr(options, "deterministic", False))  # evaluate.py has none
        if jax.process_index() > 0:
            sys.stdout = open(os.devnull, "w")
        check_same(**{name: value for name, value in vars(options).items() if name not in OF_ONE})
        with jax.set_mesh(make_mesh(options.mesh)):
            yield
    except BaseException as error:
        if not jax.distributed.is_initialized():
            raise
        abort(error)


def keep_compiled_programs() -> None:
    """Have JAX keep what it compiles in the user's cache folder, a part for each kind of CPU."""
    if jax.config.jax_compilation_cache_dir is not None:  # ty: ignore[missing-attribute]
        return
    try:
        folder = cache_folder() / f"compiled-{platform.machine()}-{zlib.crc32(cpu_flags().encode()):08x}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", 2**32)  # bytes
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def connect(options: Any) -> None:
    """Wait until all processes have started, before JAX touches a device. Raises UserError."""
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


def choose_device(device: str, deterministic: bool = False) -> None:
    """Choose the device before JAX starts. Raises UserError."""
    for name, value in SAME_EVERYWHERE.items():
        jax.config.update(name, value)
    if deterministic:  # then a GPU adds in a fixed order, in cuDNN too (openxla/xla#12520, #14125)
        add_xla_flag("--xla_gpu_deterministic_ops", "true")
    wait_for_simulated_devices()
    accelerator = any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))
    if device == "cpu" or device == "auto" and not accelerator:
        # LLVM's level 1 compiles sooner than level 3: the quickstart's first start takes 13 s instead of 16
        # on a Xeon's two cores. A step of the CPU Shakespeare run takes 100 ms of CPU time at both levels.
        add_xla_flag("--xla_backend_optimization_level", 1)
    # A CPU then computes on the main thread, where alone the C library keeps large freed blocks.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if device != "auto":  # with a CPU beside the accelerator, as by default
        jax.config.update("jax_platforms", device if device == "cpu" else f"{device},cpu")
    try:
        found = jax.devices()[0].platform
    except (RuntimeError, AssertionError):
        found = None
    if found is None or device not in ("auto", {"gpu": "cuda"}.get(found, found)):
        asked = f"device={device}" if device != "auto" else f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}"
        raise UserError(f"{asked}: JAX finds none on this machine; use --device=cpu, or install JAX for it")


def wait_for_simulated_devices() -> None:
    """Have devices that a CPU simulates wait for each other: XLA aborts when one is 40 s late for a sum.

    With one thread each, all can come to wait in several sums at once.
    """
    devices = jax.config.jax_num_cpu_devices  # ty: ignore[missing-attribute]
    if devices > 1:
        add_xla_flag("--xla_cpu_collective_call_warn_stuck_timeout_seconds", 10**6)
        add_xla_flag("--xla_cpu_collective_call_terminate_timeout_seconds", 10**6)
        os.environ.setdefault("PJRT_NPROC", str(4 * devices))


def add_xla_flag(name: str, value: int | str) -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    if name not in flags:  # the user's own counts
        os.environ["XLA_FLAGS"] = f"{flags} {name}={value}".strip()


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


# What the processes do together


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


# The memory of this process


def peak_memory() -> int:
    """Return the peak bytes of the first device, or on a CPU of this process; 0: unknown."""
    if stats := jax.local_devices()[0].memory_stats():
        return stats["peak_bytes_in_use"]
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def reuse_freed_memory(compiled: jax.stages.Compiled) -> None:
    """Have the C library keep what a step frees, unless it is much: else the kernel clears it every step.

    A step of the quickstart then takes 650 ms of CPU time on an EPYC's two cores, instead of 730 to 840.
    """
    if not hasattr(os, "sysconf") or not hasattr(libc := ctypes.CDLL(None), "mallopt"):  # it is not GNU's
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    plan = compiled.memory_analysis()
    if plan and plan.temp_size_in_bytes < memory / 12:
        libc.mallopt(-4, 0)  # M_MMAP_MAX: large blocks come from the heap, too,
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: which never shrinks
