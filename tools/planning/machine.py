"""The machine, as figures and records name it."""

import os
import platform

from layers.compute import cpu_flags, cpu_info


def describe_cpu() -> str:
    """Return the CPU's name, cores and instructions that multiply bfloat16."""
    fast = [name for name in ("amx_bf16", "avx512_bf16") if name in cpu_flags().split()]
    name = cpu_info("model name") or platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores of {name} ({', '.join(fast) or 'no bfloat16 products'})"
