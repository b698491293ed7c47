"""The shapes of GPUs, as XLA asks for them when it chooses kernels and their tiles.

Sources: openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb, read in November 2026; it has none for the
RTX 4090 and L4, which are from NVIDIA's Ada white paper and data sheets.
"""

from dataclasses import dataclass, replace

from config.devices import Device


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
GPUS = {
    "RTX4090": RTX4090,
    "L4": L4,
    "A100-40GB": A100,
    "A100": A100,
    "H100-PCIe": H100_PCIE,
    "H100": H100,
    "H200": H100,
    "B200": B200,
}


def describe_gpu(device: Device) -> str:
    """Write a GPU as XLA's GpuTargetConfigProto, in protobuf's text format."""
    gpu = GPUS[device.name]
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
