"""The machine: its devices, its memory, and how XLA compiles for it."""

import ctypes
import importlib.util
import os
import platform
import sys
import zlib
from collections.abc import Generator
from contextlib import contextmanager

import jax

from config.command_line import UserError
from config.devices import cpu_flags, cpu_info
from config.files import cache_folder
from parallel.hosts import agree_on, hosts
from parallel.mesh import make_mesh


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


def describe_cpu() -> str:
    """Return the CPU's name, cores and instructions that multiply bfloat16."""
    fast = [name for name in ("amx_bf16", "avx512_bf16") if name in cpu_flags().split()]
    name = cpu_info("model name") or platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores of {name} ({', '.join(fast) or 'no bfloat16 products'})"


@contextmanager
def on_devices(options) -> Generator[None]:
    """Within, all processes compute together on the device mesh. Raises UserError."""
    if options.compilation_cache:
        keep_compiled_programs()
    with hosts(options):
        choose_device(options.device)
        agree_on(options)
        with jax.set_mesh(make_mesh(options.mesh)):
            yield


def choose_device(device: str) -> None:
    """Choose the device before JAX starts. Raises UserError."""
    jax.config.update("jax_enable_x64", False)  # the user's variable would make a run's arrays others
    wait_for_simulated_devices()
    accelerator = any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))
    if device == "cpu" or device == "auto" and not accelerator:
        # LLVM's level 1 instead of 3: it compiles sooner, and steps are as fast (docs/history.md).
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
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def reuse_freed_memory(compiled: jax.stages.Compiled) -> None:
    """Have the C library keep what a step frees, unless it is much: else the kernel clears it every step."""
    if not hasattr(os, "sysconf") or not hasattr(libc := ctypes.CDLL(None), "mallopt"):  # it is not GNU's
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    plan = compiled.memory_analysis()
    if plan and plan.temp_size_in_bytes < memory / 12:
        libc.mallopt(-4, 0)  # M_MMAP_MAX: large blocks come from the heap, too,
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: which never shrinks
