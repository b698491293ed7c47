"""The device mesh: how the devices share the work.

    --mesh=data:2,fsdp:2,tensor:2       8 devices; one axis may be -1: as many as are left

    stage    each device has its own layers, and passes microbatches on (parallel/pipeline/)
    data     each device has all the weights and its rows of the batch; gradients are summed over devices
    fsdp     the same, but weights and optimizer state are split, and gathered for use (ZeRO-3,
             arXiv:1910.02054): a layer's at a time, or all once a step (training/recipe.py)
    tensor   the devices share each layer's heads and MLP (Megatron, arXiv:1909.08053)

On every mesh the loss curve is the same, to float32 rounding. `tensor` communicates most, between
neighbours; `stage` least.
"""

import math
import re
import sys

import jax
from jax.sharding import AxisType, Mesh

from config.command_line import UserError
from model import GPTConfig

AXES = ("stage", "data", "fsdp", "tensor")


def make_mesh(text: str) -> Mesh:
    """Make the mesh that `--mesh=<text>` describes. One process may leave devices out. Raises UserError."""
    sizes, devices = parse(text, jax.device_count()), jax.devices()
    n = math.prod(sizes.values())
    if n < len(devices):
        if jax.process_count() > 1:
            raise UserError(f"mesh={text} has {n} devices, but the processes have {len(devices)}: use all")
        print(f"note: mesh={text} uses {n} of {len(devices)} devices", file=sys.stderr)
    return mesh_of(devices[:n], tuple(sizes.values()))


def mesh_of(devices: list[jax.Device], sizes: tuple[int, ...]) -> Mesh:
    auto = (AxisType.Auto,) * len(AXES)  # XLA chooses the shardings that are not given
    return jax.make_mesh(sizes, AXES, axis_types=auto, devices=devices)


def parse(text: str, n_devices: int) -> dict[str, int]:
    """Return the size of every axis, 1 if `text` does not name it. Raises UserError."""
    words = text.replace(" ", "").split(",")
    found = [re.fullmatch(f"({'|'.join(AXES)}):(-1|[1-9][0-9]*)", word) for word in words]
    sizes = {match[1]: int(match[2]) for match in found if match}
    free = [name for name, size in sizes.items() if size == -1]
    if len(sizes) < len(words) or len(free) > 1:
        raise UserError(
            f"mesh={text}: give sizes of {', '.join(AXES)}, each at most once, as in data:2,fsdp:4; "
            "one may be -1, the rest of the devices"
        )
    named = math.prod(size for size in sizes.values() if size != -1)
    if named > n_devices or free and n_devices % named:
        needs = f"a multiple of {named}" if free else named
        raise UserError(f"mesh={text} needs {needs} devices, of {n_devices}: change its axes")
    return {name: n_devices // named if name in free else sizes.get(name, 1) for name in AXES}


def check_fit(mesh: Mesh, config: GPTConfig, B: int, A: int = 1) -> None:
    """Raise UserError for a model, or A microbatches of B rows, that the mesh cannot split evenly."""
    rows = mesh.shape["data"] * mesh.shape["fsdp"]
    if B % rows and A % rows == 0:  # as in nanoGPT's configs, whose batch_size is one device's
        raise UserError(
            f"batch_size={B} must be a multiple of data x fsdp = {rows}: --batch_size={B * rows} "
            f"--gradient_accumulation_steps={A // rows} is as large a step"
        )
    for name, size, axes, parts in (
        ("batch_size", B, "data x fsdp", rows),
        ("n_embd", config.n_embd, "fsdp", mesh.shape["fsdp"]),
        ("n_kv_head" if config.n_kv_head else "n_head", config.kv_heads, "tensor", mesh.shape["tensor"]),
        ("the MLP's hidden size", config.hidden, "tensor", mesh.shape["tensor"]),
    ):
        if size % parts:
            raise UserError(f"{name}={size} must be a multiple of {axes} = {parts}: change it or the mesh")
