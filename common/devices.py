"""The devices that the project knows: what they can do and hold, how they are connected, what they cost.

devices.csv has the figures and their sources.
"""

import csv
import functools
import os
import platform
import re
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU or a TPU chip. A figure of 0 is unknown."""

    name: str  # as --on has it
    kind: str  # as JAX calls it
    pattern: str  # a regular expression for what JAX may call it
    peak: float  # dense bfloat16 FLOP/s
    memory: int  # bytes
    bandwidth: float  # bytes/s of that memory
    link: float  # bytes/s that one device sends to its neighbours
    between_hosts: float  # bytes/s that a GPU sends to another host; 0: one host only
    price: float  # dollars an hour
    price_source: str
    at_modal: str = "-"  # Modal's name for it; "-": Modal has none
    modal_price: float = 0.0  # dollars an hour at Modal


_table = Path(__file__).with_name("devices.csv").read_text(encoding="utf-8")
_rows = csv.DictReader(re.sub("(?m)^#.*\n", "", _table).splitlines(), skipinitialspace=True)
DEVICES = TypeAdapter(list[Device]).validate_python(list(_rows))


def known_device(kind: str) -> Device | None:
    """Return the device that JAX calls `kind`; None for an unknown one, or a slice of one (MIG)."""
    if "MIG" in kind:
        return None
    known = (device for device in DEVICES if device.peak)
    return next((device for device in known if re.search(rf"\b({device.pattern})(?!\w)", kind)), None)


@functools.cache
def cpu_info(name: str) -> str:
    """Return an entry of /proc/cpuinfo, by a regular expression for its name; "" without it."""
    path = Path("/proc/cpuinfo")
    found = re.search(rf"^(?:{name})\s*:(.*)$", path.read_text(), re.M) if path.exists() else None
    return found[1].strip() if found else ""


def cpu_flags() -> str:
    return cpu_info("flags|Features")


def count_cpus() -> int:
    """Return how many cores this process may use, which a container or `taskset` limits."""
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_cpu() -> str:
    """Return the CPU's name, cores and instructions that multiply bfloat16."""
    fast = [name for name in ("amx_bf16", "avx512_bf16") if name in cpu_flags().split()]
    name = cpu_info("model name") or platform.processor() or platform.machine()
    return f"{count_cpus()} cores of {name} ({', '.join(fast) or 'no bfloat16 products'})"
