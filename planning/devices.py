"""The devices that plan.py knows: what they can do, what they hold, how they are connected, what they cost.

Everything here is a fact from outside, with its source; none was measured by this project.

Peaks are dense bfloat16 with float32 sums, as in runs/hardware.py. Sources: NVIDIA's data sheets for the
A100, H100, H200, B200 and L4, its Ada white paper for the RTX 4090;
docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e} for TPUs. A GPU's memory, bandwidth and shape are those with
which XLA describes it (openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb, read in November 2026); it
has none for the RTX 4090 and L4, which are from NVIDIA's Ada white paper and data sheets, with the memory
that nvidia-smi shows less what the driver keeps. A TPU's memory is what libtpu 0.0.42 says a program may use.

Links are bytes per second that a device sends one way. NVLink: half of the data sheets' figure, which counts
both ways; PCIe 4.0 x16: 32 GB/s. Between hosts: 400 Gbit/s a GPU as in a DGX H100, H200 or B200, 200 in a DGX
A100. TPUs: jax-ml/scaling-book, "How to Think About TPUs"; a ring uses a link's both directions.

Prices are US dollars an hour for one device, on demand, without tax. They change; read the page before you
rent. They were read in dated transcripts of these pages, not on the pages themselves:

    A100, H100, B200    lambda.ai/instances, per GPU of a machine of 8 (H100 PCIe: of 1), 20 September 2026
    H200                runpod.io/pricing, secure pods, 7 October 2026
    L4                  modal.com/pricing, 7 May 2026
    RTX 4090            docs.runpod.io/serverless/pricing, an active worker's, undated
    TPUs                cloud.google.com/tpu/pricing, per chip, United States, 2026
"""

from dataclasses import dataclass, replace

GIB = 2**30
PRICES_READ = "May to October 2026"  # the dates above


@dataclass(frozen=True)
class Device:
    """A GPU or a TPU chip."""

    name: str  # as --on has it
    kind: str  # as JAX calls it
    peak: float  # dense bfloat16 FLOP/s
    memory: int  # bytes
    bandwidth: float  # bytes/s of that memory
    link: float  # bytes/s that one device sends to its neighbours
    price: float  # dollars an hour
    price_source: str
    gpu: "Gpu | None" = None  # None for a TPU
    between_hosts: float | None = None  # bytes/s that a GPU sends to another host; None: one host only
    dimensions: int = 0  # of a TPU's topology

    @property
    def usable(self) -> int:
        """Bytes that a program may use: of a GPU's, the driver and the libraries take about a twentieth."""
        return int(0.95 * self.memory) if self.gpu else self.memory


@dataclass(frozen=True)
class Gpu:
    """The shape of a GPU, which XLA asks for when it chooses kernels and their tiles."""

    capability: tuple[int, int]  # CUDA compute capability
    cores: int  # streaming multiprocessors
    lanes: int  # float32 units of a core
    clock: float  # GHz
    cache: int  # bytes of L2
    shared_memory: int  # bytes of a core
    threads: int  # resident in a core


KIB, MIB = 2**10, 2**20
A100 = Gpu((8, 0), cores=108, lanes=64, clock=1.41, cache=40 * MIB, shared_memory=164 * KIB, threads=2048)
RTX4090 = Gpu((8, 9), cores=128, lanes=128, clock=2.52, cache=72 * MIB, shared_memory=100 * KIB, threads=1536)
L4 = replace(RTX4090, cores=58, clock=2.04, cache=48 * MIB)
H100 = Gpu((9, 0), cores=132, lanes=128, clock=1.98, cache=50 * MIB, shared_memory=228 * KIB, threads=2048)
H100_PCIE = replace(H100, cores=114, clock=1.755)
B200 = replace(H100, capability=(10, 0), cores=148, clock=1.965, cache=132_644_864)

LAMBDA, RUNPOD = "lambda.ai/instances", "runpod.io/pricing"
MODAL, GOOGLE = "modal.com/pricing", "cloud.google.com/tpu/pricing"
PCIE = 32e9

DGX_A100, DGX_H100 = 25e9, 50e9  # bytes/s that a GPU sends to another machine

TABLE = (
    Device(
        "RTX4090",
        "NVIDIA GeForce RTX 4090",
        165e12,
        25_250_627_584,
        1008e9,
        PCIE,
        0.76,
        RUNPOD,
        RTX4090,
        None,
    ),
    Device("L4", "NVIDIA L4", 121e12, 23_580_639_232, 300e9, PCIE, 0.80, MODAL, L4, None),
    Device(
        "A100-40GB",
        "NVIDIA A100-SXM4-40GB",
        312e12,
        42_331_013_120,
        1555e9,
        300e9,
        1.99,
        LAMBDA,
        A100,
        DGX_A100,
    ),
    Device(
        "A100", "NVIDIA A100-SXM4-80GB", 312e12, 85_100_068_864, 2039e9, 300e9, 2.79, LAMBDA, A100, DGX_A100
    ),
    Device(
        "H100-PCIe", "NVIDIA H100 PCIe", 756e12, 84_942_979_072, 2039e9, PCIE, 3.29, LAMBDA, H100_PCIE, None
    ),
    Device(
        "H100", "NVIDIA H100 80GB HBM3", 989e12, 84_942_979_072, 3352e9, 450e9, 3.99, LAMBDA, H100, DGX_H100
    ),
    Device(
        "H200",
        "NVIDIA H200 141GB HBM3e",
        989e12,
        151_397_597_184,
        4800e9,
        450e9,
        4.59,
        RUNPOD,
        H100,
        DGX_H100,
    ),
    Device("B200", "NVIDIA B200", 2250e12, 191_514_411_008, 7672e9, 900e9, 6.69, LAMBDA, B200, DGX_H100),
    Device("v5e", "TPU v5 lite", 197e12, int(15.75 * GIB), 819e9, 2 * 50e9, 1.20, GOOGLE, dimensions=2),
    Device("v5p", "TPU v5", 459e12, int(95.74 * GIB), 2765e9, 2 * 100e9, 4.20, GOOGLE, dimensions=3),
    Device("v6e", "TPU v6 lite", 918e12, int(31.25 * GIB), 1638e9, 2 * 100e9, 2.70, GOOGLE, dimensions=2),
)
DEVICES = {device.name: device for device in TABLE}


def describe_gpu(device: Device) -> str:
    """Write a GPU as XLA's GpuTargetConfigProto, in protobuf's text format."""
    gpu = device.gpu
    assert gpu is not None, f"{device.name} is a TPU, which libtpu describes"
    major, minor = gpu.capability
    # sm_90a, sm_100a: Hopper's and Blackwell's own instructions.
    features = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_memory}
  threads_per_core_limit: {gpu.threads}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(device.bandwidth)}
  l2_cache_size: {gpu.cache}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {device.memory}
  shared_memory_per_block_optin: {gpu.shared_memory - 1024}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  name: "{device.kind}"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
device_description_str: "{device.kind}"
"""
