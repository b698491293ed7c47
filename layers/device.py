"""The device that a program is compiled for, which need not be in this machine: planning/ has absent ones."""

import functools
import os
import re
from pathlib import Path

import jax
from jax.sharding import AbstractDevice


def device() -> jax.Device | AbstractDevice:
    """Return a device of the mesh, or without a mesh JAX's first: either has `platform` and `device_kind`.

    Inside a compiled function the mesh is abstract, and remembers no more of its devices than these two.
    """
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


# GiB of memory of the devices that have more than LEAST, by what JAX calls them; the first pattern that fits
# counts. From the same sources as planning/devices.py.
MEMORY = {r"40GB": 40, r"[AH]100": 80, r"H200": 141, r"B200": 178, r"TPU v5p|TPU v5$": 95, r"TPU v[46]": 32}
LEAST = 15


def memory() -> int:
    """Return about how many bytes of memory the device has; for a CPU or an unknown device 15 GiB."""
    kind = device().device_kind
    return 2**30 * next((size for pattern, size in MEMORY.items() if re.search(pattern, kind)), LEAST)


def multiplies_bfloat16() -> bool:
    """Tell whether the device multiplies matrices of bfloat16 faster than of float32.

    Of CPUs those do that have instructions for it, Intel's since Sapphire Rapids and AMD's since Zen 4.
    ONEDNN_MAX_CPU_ISA keeps XLA's library for products from newer ones.
    """
    if device().platform != "cpu":
        return True
    forbidden = "ONEDNN_MAX_CPU_ISA" in os.environ
    return not forbidden and re.search(r"\b(amx_bf16|avx512_bf16)\b", cpu_flags()) is not None


@functools.cache
def cpu_info(name: str) -> str:
    """Return a line of Linux's /proc/cpuinfo, "model name" for one; "" where there is none."""
    path = Path("/proc/cpuinfo")
    found = re.search(rf"^(?:{name})\s*:(.*)$", path.read_text(), re.M) if path.exists() else None
    return found[1].strip() if found else ""


def cpu_flags() -> str:
    """Return the names of the instructions that this machine's CPU has; "" where /proc does not tell."""
    return cpu_info("flags|Features")
