"""The machine at hand as a device to plan for: its peaks, measured in about two seconds.

A card's data sheet has one peak. A CPU has as many as its caches and threads make, so that rates are measured
by size: of products by their FLOPs, of memory by the bytes that are read and written.
"""

import math
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from config.devices import Device, known_device
from runs.hardware import describe_cpu, reuse_freed_memory
from tools.planning.speeds import Speeds
from tools.planning.target import Target

WIDTHS = (64, 128, 256, 512, 1024)  # of square products
LENGTHS = (2**14, 2**17, 2**20, 2**22, 2**24)  # of float32 vectors
SMALL = 64  # small operations, one after another
BUDGET = 0.08  # seconds for each
# A step on a CPU reaches these shares of the peaks, as fitted to the steps in docs/planning.md.
SHARES = {"bfloat16": 0.8, "float32": 0.8, "memory": 0.4}
SHARE_OF_EXPONENTIALS = 0.3


def this_machine() -> Target:
    """Return this machine's devices, with their peaks as they are now."""
    kind = jax.devices()[0].device_kind
    known = known_device(kind)
    name = kind if known else describe_cpu()
    peaks = measure_peaks()
    curves: dict[str, Any] = {
        key: [(size, share * rate) for size, rate in peaks[key]] for key, share in SHARES.items()
    }
    peak, bandwidth = (max(rate for _, rate in peaks[key]) for key in ("bfloat16", "memory"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device = known or Device("here", name, "", peak, memory, bandwidth, bandwidth, 0.0, 0.0, "")
    speeds = Speeds(
        **curves,
        exponentials=SHARE_OF_EXPONENTIALS * peaks["exponentials"],
        link=device.link,
        between_hosts=math.inf,
        kernel=peaks["kernel"],
        message=peaks["kernel"],
    )
    return Target("here", device, (jax.device_count(),), speeds)


def measure_peaks() -> dict:
    """Measure FLOP/s and bytes/s by size, exponentials a second, and the seconds of a small operation."""

    def products(dtype, n: int) -> tuple[float, float]:
        x = jnp.ones((n, n), dtype)
        flops = 2.0 * n**3
        return flops, flops / seconds_of(lambda a: jnp.dot(a, a, preferred_element_type=jnp.float32), x)

    def memory(n: int) -> tuple[float, float]:
        return 8.0 * n, 8.0 * n / seconds_of(lambda a: 1.5 * a + 2.0, jnp.ones(n))

    def small(x: Array) -> Array:
        for _ in range(SMALL // 2):
            x = x / x.sum()  # two kernels: the sum has to be there first
        return x

    n = LENGTHS[2]
    return {
        "bfloat16": [products(jnp.bfloat16, n) for n in WIDTHS],
        "float32": [products(jnp.float32, n) for n in WIDTHS],
        "memory": [memory(n) for n in LENGTHS],
        "exponentials": n / seconds_of(jnp.exp, jnp.ones(n)),
        "kernel": seconds_of(small, jnp.ones(4096)) / SMALL,
    }


def seconds_of(function: Callable, x: Array) -> float:
    """Return the seconds of the fastest run within the budget."""
    compiled = jax.jit(function).lower(x).compile()
    reuse_freed_memory(compiled)
    jax.block_until_ready(compiled(x))
    seconds = []
    end = time.perf_counter() + BUDGET
    while (start := time.perf_counter()) < end:
        jax.block_until_ready(compiled(x))
        seconds.append(time.perf_counter() - start)
    return min(seconds)
