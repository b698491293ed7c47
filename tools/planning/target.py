"""The devices to plan for, such as eight H100 or a slice of a TPU pod, which need not be there.

XLA compiles for them, and no array can be put there. Its compilers come with requirements-plan.txt; they need
no driver and no card.
"""

import math
import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import pandas as pd
from jax.experimental import topologies

from common import devices
from common.devices import Device
from common.errors import UserError
from common.files import first_line
from parallel.machines import add_xla_flag

GPUS_PER_HOST = 8
# The topologies of TPUs in docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e}; of v5p, those of at most 512 chips.
PLANE = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16".split()
CUBE = "1x1x1 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8".split()
TOPOLOGIES = {"v5e": PLANE, "v5p": CUBE, "v6e": PLANE}
SIZES = [str(n) for n in (*range(1, GPUS_PER_HOST), *range(GPUS_PER_HOST, 8193, GPUS_PER_HOST))]  # of GPUs

# The shapes of GPUs, as fields of XLA's GpuTargetConfigProto.
GPUS = pd.read_csv(
    Path(__file__).with_name("gpus.csv"), comment="#", skipinitialspace=True, index_col="name", dtype=str
).to_dict("index")
# The devices that can be planned for.
DEVICES = {x.name: x for x in devices.DEVICES if x.name in GPUS or x.name in TOPOLOGIES}
PRICES_READ = "May to October 2026"  # the dates in common/devices.csv


def usable(device: Device) -> int:
    """Return the bytes that a program may use: a GPU's driver and libraries take about a twentieth."""
    return int(0.95 * device.memory) if device.name in GPUS else device.memory


@dataclass(frozen=True)
class Target:
    """Some devices of one kind."""

    text: str  # as the user wrote it
    device: Device
    shape: tuple[int, ...]  # a TPU's topology, or the number of GPUs

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> list[jax.Device]:
        """The devices, for a mesh. Raises UserError."""
        gpu = self.device.name in GPUS
        try:
            for package in ("jax-cuda13-plugin", "nvidia-cudnn-cu13") if gpu else ("libtpu",):
                metadata.distribution(package)
            return topologies.get_topology_desc(**topology(self)).devices
        except metadata.PackageNotFoundError as error:
            lacks = f"its compiler, {error.name}, is not installed"
            raise UserError(f"--on={self.text}: {lacks}: pip install -r requirements-plan.txt") from None
        except RuntimeError as error:
            raise UserError(f"--on={self.text}: its compiler does not start: {first_line(error)}") from error


def parse_target(text: str) -> Target:
    """Read `--on`. Raises UserError."""
    name, _, size = text.partition(":")
    device = next((x for x in DEVICES.values() if x.name.lower() == name.lower()), None)
    if device is None:
        raise UserError(f"--on={text}: unknown device {name!r}; known are {', '.join(DEVICES)}")
    known = TOPOLOGIES.get(device.name) or SIZES[: None if device.between_hosts else GPUS_PER_HOST]
    size = size or known[0]
    if size not in known:
        some = f"{', '.join(known[:12])}{', ...' * (len(known) > 12)}"
        raise UserError(f"--on={text}: unknown size {size!r}; {device.name} is planned by {some}")
    return Target(text, device, tuple(map(int, size.split("x"))))


def prepare_to_compile() -> None:
    """Set what the compilers of absent devices need. Call it before anything asks JAX for its devices."""
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # by several programs: none holds a TPU
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # libtpu asks no cloud about the machine
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")  # or libtpu warns; the topology decides
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's warnings that it finds no driver
    # The autotuner would time kernels on the card; without it, XLA takes its own first choice.
    add_xla_flag("--xla_gpu_autotune_level", 0)
    jax.config.update("jax_platforms", "cpu")


def topology(target: Target) -> dict[str, Any]:
    if target.device.name in GPUS:
        hosts = -(-target.count // GPUS_PER_HOST)
        shape = f"1x{hosts}x{target.count // hosts}"  # slices, machines, GPUs of each
        config = gpu_config(target.device)
        return dict(platform="cuda", topology_name="", topology=shape, target_config=config)
    size = "x".join(map(str, target.shape))
    one_chip = dict(chips_per_host_bounds=(1, 1, 1)) if target.count == 1 else {}
    return dict(platform="tpu", topology_name=f"{target.device.name}:{size}") | one_chip


def gpu_config(device: Device) -> str:
    """Write a GPU as XLA's GpuTargetConfigProto, in protobuf's text format."""
    fields = dict(GPUS[device.name])
    major, minor = fields.pop("major"), fields.pop("minor")
    # sm_90a, sm_100a: Hopper's and Blackwell's own instructions.
    features = "ACCELERATED_FEATURES" if int(major) >= 9 else "NONE"
    return f"""
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
device_description_str: "{device.kind}"
gpu_device_info {{
  name: "{device.kind}" device_vendor: "NVIDIA Corporation" device_address_bits: 64
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  device_memory_size: {device.memory} memory_bandwidth: {int(device.bandwidth)}
  {" ".join(f"{name}: {value}" for name, value in fields.items())}
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {int(fields["shared_memory_per_core"]) - 1024}
  threads_per_warp: 32 threads_per_block_limit: 1024
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
"""
