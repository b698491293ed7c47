"""Adapt a step to its devices: when they add their gradients up, and how XLA compiles for them."""

import math
import os
from collections.abc import Callable
from functools import partial

import jax
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Shaped

from model import GPT
from parallel.mesh import ROWS, current_mesh, device, memory

GATHERED_FRACTION = 1 / 8  # of a device's memory, for whole weights and gradients, 4 bytes each


def deferred_reduction_axes(model: GPT) -> tuple[str, ...]:
    """Return the mesh axes over which gradients are summed once a step: `fsdp` only where memory allows."""
    mesh = current_mesh()
    if mesh.shape["tensor"] > 1 and device().platform == "tpu":
        return ()  # XLA crashes there (libtpu 0.0.42.1: Check failed: target.IsManualSubgroup())
    gathered = 2 * 4 * sum(x.size for x in jax.tree.leaves(model)) / mesh.shape["tensor"]
    axes = ROWS if gathered < GATHERED_FRACTION * memory() else ("data",)
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def reduce_once(axes: tuple[str, ...], average: Callable, weights: GPT, frozen: GPT, targets, batch):
    """Have each device `average` its own rows over the microbatches; then average once over the devices.

    XLA alone would sum gradients over the devices in every microbatch. By a count of kernels, a step of GPT-2
    cut to 4 layers, of 5 microbatches on eight H100s, takes 20% longer then with data:8, 7% with fsdp:8.
    """
    # P(): whole on each device along these axes, so that `fsdp` gathers weights and gradients once.
    rows, devices = P(None, axes), math.prod(current_mesh().shape[axis] for axis in axes)
    return jax.shard_map(
        lambda *args: lax.pmean(average(*args), axes),
        in_specs=(P(), P(), P(), rows),
        out_specs=P(),
        axis_names=set(axes),
        check_vma=False,
    )(weights, frozen, targets / devices, batch)


CPU_TOKENS = 2048  # a CPU cuts larger microbatches, so that temporaries stay in its caches


def cut_for_cpu(batch):
    """On a CPU, cut each microbatch, of tokens x and what else has its rows, into smaller ones."""
    n = cpu_parts(*batch[0].shape[1:]) if device().platform == "cpu" else 1
    return jax.tree.map(partial(cut, n=n), batch)


def cpu_parts(B: int, T: int) -> int:
    """Return into how many parts a CPU cuts a microbatch."""
    mesh = current_mesh()
    rows = B // (mesh.shape["data"] * mesh.shape["fsdp"])  # of a device
    return next(n for n in range(1, rows + 1) if rows % n == 0 and (B * T <= n * CPU_TOKENS or n == rows))


def cut(x: Shaped[Array, "A B *T"], n: int) -> Shaped[Array, "A_n B_n *T"]:
    """Cut each microbatch into n: every n-th row, since a device has consecutive rows and keeps its own."""
    A, B, *T = x.shape
    return x.reshape(A, B // n, n, *T).swapaxes(1, 2).reshape(A * n, B // n, *T)


def compiler_options() -> dict[str, str | bool]:
    """Return XLA's option for the step on several TPUs, unless the user has set it."""
    # No windowed einsums, products in parts that pass around a ring: by a count of kernels, a step of GPT-2
    # cut to 2 layers takes half as long without them, with fsdp:8 on eight v5e.
    name = "xla_jf_spmd_threshold_for_windowed_einsum_mib"
    by_user = name in os.environ.get("LIBTPU_INIT_ARGS", "")
    wanted = device().platform == "tpu" and current_mesh().size > 1 and not by_user
    return {name: "1000000"} if wanted else {}
