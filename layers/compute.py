"""How a model is computed, and where. What code that is traced asks of the device and the mesh, it asks here.

Neither has to exist on this machine: plan.py compiles for absent ones.
"""

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
from jax import lax
from jax.sharding import AbstractDevice, AbstractMesh, PartitionSpec
from jaxtyping import Array

from config.devices import known_device


@dataclass(frozen=True)
class Compute:
    """How a model is computed, never what it is. training/state.py chooses it."""

    dtype: str = "float32"  # of the operands of matrix products, or bfloat16
    result: str = "float32"  # of their results
    attention: str = "einsum"  # or a kernel, cudnn or splash; with dropout, einsum is used
    unroll: int = 0  # layers unrolled in the scan over layers; 0: all
    remat: Literal["none", "block", "dots"] = "none"  # what the backward pass recomputes: see layers/stack.py
    max_logits: int = 2**26  # on a device at once; the loss computes more in chunks


ONE_DEVICE = AbstractMesh((1, 1, 1, 1), ("stage", "data", "fsdp", "tensor"))


def current_mesh() -> AbstractMesh:
    """Return the mesh of the code that is traced. What `jax.shard_map` has split around it is manual."""
    mesh = jax.sharding.get_abstract_mesh()
    return ONE_DEVICE if mesh.empty else mesh


def constrain(x: Array, *axes) -> Array:
    """Constrain how the mesh splits the axes of an array. Manual mesh axes are left out of a tuple."""
    manual = current_mesh().manual_axes
    kept = [tuple(a for a in axis if a not in manual) if isinstance(axis, tuple) else axis for axis in axes]
    return lax.with_sharding_constraint(x, PartitionSpec(*kept)) if current_mesh().size > 1 else x


def device() -> jax.Device | AbstractDevice:
    """Return a device of the mesh, or else JAX's first. Only its `platform` and `device_kind` may be used."""
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def memory() -> int:
    """Return the device's memory in bytes; 15 GiB if it is unknown."""
    known = known_device(device().device_kind)
    return known.memory if known else 15 * 2**30


def multiplies_bfloat16() -> bool:
    """Tell whether the device multiplies bfloat16 faster than float32.

    Xeons since Sapphire Rapids and AMD's CPUs since Zen 4 do, unless ONEDNN_MAX_CPU_ISA forbids it.
    """
    if device().platform != "cpu":
        return True
    forbidden = "ONEDNN_MAX_CPU_ISA" in os.environ
    return not forbidden and re.search(r"\b(amx_bf16|avx512_bf16)\b", cpu_flags()) is not None


@functools.cache
def cpu_info(name: str) -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(rf"^(?:{name})\s*:(.*)$", path.read_text(), re.M) if path.exists() else None
    return found[1].strip() if found else ""


def cpu_flags() -> str:
    return cpu_info("flags|Features")
