"""The devices to plan for: absent ones, such as eight H100 or a slice of a TPU pod, and this machine's.

XLA compiles for absent ones, and no array can be put there. Its compilers come with requirements-plan.txt;
they need no driver and no card.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd
from jax import Array
from jax.experimental import topologies

from common import devices
from common.devices import Device, describe_cpu, known_device
from common.errors import UserError
from common.files import first_line
from parallel.machines import add_xla_flag, reuse_freed_memory
from tools.planning.speeds import AT_BEST, Speeds, family_of

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


@dataclass(frozen=True)
class Target:
    """Some devices of one kind."""

    text: str  # as the user wrote it
    device: Device
    shape: tuple[int, ...]  # a TPU's topology, or the number of GPUs
    measured: Speeds | None = None  # of the machine at hand, if it is no card with a known data sheet

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def speeds(self) -> Speeds:
        """Return the measured rates of the machine at hand, or the most that a data sheet's peaks allow."""
        return self.measured or Speeds.of(self.device, AT_BEST[family_of(self.device)])

    @property
    def devices(self) -> list[jax.Device]:
        """The devices, for a mesh. Raises UserError."""
        if self.text == "here":
            return jax.devices()
        needed = {"gpu": ("jax-cuda13-plugin", "nvidia-cudnn-cu13"), "tpu": ("libtpu",)}
        try:
            for package in needed[family_of(self.device)]:
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
        names = f"{', '.join(DEVICES)}, and --on=here for all of this machine"
        raise UserError(f"--on={text}: unknown device {name!r}; known are {names}")
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
    if family_of(target.device) == "gpu":
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


# The machine at hand

# A card's data sheet has one peak. A CPU has as many as its caches and threads make. Its rates are therefore
# measured by size: of products by their FLOPs, of memory by the bytes that are read and written.
WIDTHS = (64, 128, 256, 512, 1024)  # of square products
LENGTHS = (2**14, 2**17, 2**20, 2**22, 2**24)  # of float32 vectors
SMALL = 64  # small operations, one after another
BUDGET = 0.08  # seconds for each measurement
# A step on a CPU reaches these shares of the rates, as fitted to the steps in docs/planning.md.
OF_PRODUCTS, OF_MEMORY, OF_EXPONENTIALS = 0.8, 0.4, 0.3


def this_machine() -> Target:
    """Return this machine's devices, with rates that are measured where no data sheet is known."""
    device = known_device(jax.devices()[0].device_kind)
    if device and device.bandwidth:  # to start a kernel takes longer than a small one, and hides its rate
        return Target("here", device, (jax.device_count(),))
    bfloat16, float32 = ([product_rate(n, dtype) for n in WIDTHS] for dtype in (jnp.bfloat16, jnp.float32))
    memory, kernel = [memory_rate(n) for n in LENGTHS], seconds_of(small, jnp.ones(4096)) / SMALL
    peak, bandwidth = (max(rate for _, rate in curve) for curve in (bfloat16, memory))
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    here = Device("here", describe_cpu(), "", peak, size, bandwidth, bandwidth, 0.0, 0.0, "")
    speeds = Speeds(
        bfloat16=[(flops, OF_PRODUCTS * rate) for flops, rate in bfloat16],
        float32=[(flops, OF_PRODUCTS * rate) for flops, rate in float32],
        memory=[(bytes, OF_MEMORY * rate) for bytes, rate in memory],
        exponentials=OF_EXPONENTIALS * LENGTHS[2] / seconds_of(jnp.exp, jnp.ones(LENGTHS[2])),
        link=bandwidth,
        between_hosts=math.inf,
        kernel=kernel,
        message=kernel,
    )
    return Target("here", here, (jax.device_count(),), speeds)


def product_rate(n: int, dtype: Any) -> tuple[float, float]:
    """Return the FLOPs of a product of (n, n) matrices, and FLOP/s."""
    flops = 2.0 * n**3
    x = jnp.ones((n, n), dtype)
    return flops, flops / seconds_of(lambda x: jnp.dot(x, x, preferred_element_type=jnp.float32), x)


def memory_rate(n: int) -> tuple[float, float]:
    """Return the bytes that are read and written for a vector of n numbers, and bytes/s."""
    return 8.0 * n, 8.0 * n / seconds_of(lambda x: 1.5 * x + 2.0, jnp.ones(n))


def small(x: Array) -> Array:
    for _ in range(SMALL // 2):
        x = x / x.sum()  # two kernels: the sum has to be there first
    return x


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
