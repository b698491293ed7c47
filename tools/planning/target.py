"""Devices that are not there, for XLA to compile for: eight H100, say, or a slice of a TPU pod.

    target = parse_target("H100:8")                   which device, and how many
    prepare_to_compile()                              before JAX looks for devices
    devices = absent_devices("H100:8")                for a mesh: parallel.mesh.mesh_of(devices, sizes)

A mesh of them is used like any other, inside `jax.set_mesh`: programs are lowered and compiled for it, and
can be looked at, but no array can be put there. The compilers come with requirements-plan.txt:
libtpu for TPUs, JAX's CUDA plugin for NVIDIA's GPUs. They need no driver and no card.
"""

import difflib
import importlib.util
import math
import os
import re
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from config import devices
from config.command_line import UserError
from config.devices import Device, known_device
from config.files import first_line
from tools.planning.gpus import GPUS, describe_gpu

# The devices that can be planned for, by name: GPUs of a known shape, and TPUs, which libtpu describes.
DIMENSIONS = {"v5e": 2, "v5p": 3, "v6e": 2}  # of a TPU's topology
DEVICES = {
    device.name: device for device in devices.DEVICES if device.name in GPUS or device.name in DIMENSIONS
}
GPUS_PER_HOST = 8
INSTALL = "pip install -r requirements-plan.txt"


@dataclass(frozen=True)
class Target:
    """Some devices of one kind. `shape` is a TPU's topology; a GPU's is their number."""

    text: str  # as the user wrote it
    device: Device
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def hosts(self) -> int:
        """The number of machines; for TPUs, which are connected without regard to them, 1."""
        return -(-self.count // GPUS_PER_HOST) if self.device.is_gpu else 1


def parse_target(text: str) -> Target:
    """Read `--on`: a device's name, and after a colon GPUs' number or TPUs' topology. Raises UserError."""
    name, colon, size = text.partition(":")
    by_lower_case = {known.lower(): device for known, device in DEVICES.items()}
    device = by_lower_case.get(name.lower())
    if device is None:
        nearest = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
        advice = f"did you mean {by_lower_case[nearest[0]].name}? " if nearest else ""
        raise UserError(f"--on={text}: unknown device {name!r}; {advice}known are {', '.join(DEVICES)}")
    if device.is_gpu:
        return gpu_target(text, device, size if colon else "1")
    return tpu_target(text, device, size if colon else "x".join("1" * DIMENSIONS[device.name]))


def target_here(device_kind: str, count: int) -> Target | None:
    """Return `count` devices of a kind, as JAX calls it, that are there; None if the table has none such."""
    device = known_device(device_kind)
    return Target(device.name, device, (count,)) if device and device.name in DEVICES else None


def gpu_target(text: str, device: Device, size: str) -> Target:
    if not re.fullmatch(r"[1-9]\d{0,4}", size):
        raise UserError(f"--on={text}: expected a number of GPUs, as in --on={device.name}:8")
    target = Target(text, device, (int(size),))
    if target.hosts > 1 and target.count % GPUS_PER_HOST:
        raise UserError(f"--on={text}: a machine has {GPUS_PER_HOST} GPUs; give a multiple of that")
    if target.hosts > 1 and device.between_hosts is None:
        raise UserError(f"--on={text}: {device.name} is planned on one machine, of {GPUS_PER_HOST} at most")
    return target


def tpu_target(text: str, device: Device, size: str) -> Target:
    sizes = tpu_topologies(device)
    if not re.fullmatch(r"\d+(x\d+)*", size) or (shape := tuple(map(int, size.split("x")))) not in sizes:
        known = ", ".join("x".join(map(str, shape)) for shape in sizes)
        raise UserError(f"--on={text}: unknown topology {size!r}; {device.name} has {known}")
    return Target(text, device, shape)


def tpu_topologies(device: Device) -> list[tuple[int, ...]]:
    """List the topologies that can be asked for, as docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e} do.

    A v5p's can be far larger (up to 16x16x24); these are the ones with at most 512 chips.
    """
    if DIMENSIONS[device.name] == 2:
        return [(1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)]
    cubes = [(4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)]
    return [(1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), *cubes]


def prepare_to_compile() -> None:
    """Set what the compilers of absent devices need. Call it before anything asks JAX for its devices.

    JAX itself computes on the CPU. libtpu is told not to ask a cloud about the machine, and that other
    programs may use it too, since none holds a TPU. XLA's autotuner would time kernels on the card; without
    it, XLA takes its own first choice.
    """
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")  # or libtpu warns; the topology decides
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's warnings that it finds no driver
    if "xla_gpu_autotune_level" not in (flags := os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
    jax.config.update("jax_platforms", "cpu")


def absent_devices(text: str) -> list[jax.Device]:
    """Return the devices that `text`, as `--on` has it, names. Raises UserError; see `prepare_to_compile`."""
    target = parse_target(text)
    check_installed(target.device)
    try:
        return describe_topology(target).devices
    except RuntimeError as error:
        raise UserError(f"--on={text}: its compiler does not start: {first_line(error)}") from error


def describe_topology(target: Target) -> topologies.TopologyDescription:
    if target.device.is_gpu:
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name="",
            topology=f"1x{target.hosts}x{target.count // target.hosts}",  # slices, machines, GPUs of each
            target_config=describe_gpu(target.device),
        )
    size = "x".join(map(str, target.shape))
    one_chip: dict[str, Any] = {"chips_per_host_bounds": (1, 1, 1)} if target.count == 1 else {}
    return topologies.get_topology_desc(
        platform="tpu", topology_name=f"{target.device.name}:{size}", **one_chip
    )


def check_installed(device: Device) -> None:
    """Raise UserError if the compiler for a device is not installed."""
    for module in ("jax_plugins.xla_cuda13", "nvidia.cudnn") if device.is_gpu else ("libtpu",):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # of the package that should hold it
            found = None
        if found is None:
            raise UserError(f"--on={device.name}: {module} is not installed, for its compiler: {INSTALL}")
