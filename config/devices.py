"""The devices that the project knows: what they can do and hold, how they are connected, what they cost.

Every figure is a fact from outside, with its source; this project measured none.

peak       dense bfloat16 TFLOP/s with float32 sums, without the factor of 2 that data sheets add for
           sparsity: NVIDIA's data sheets, AWS's for the A10G, NVIDIA's Ada white paper for the RTX 4090,
           docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}
memory     GB (10^9 bytes) that XLA sees: openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb, November
           2026; RTX 4090, L4: of nvidia-smi; TPUs: of libtpu 0.0.42; A10, A10G, H100 NVL, v4: data sheets'
bandwidth  GB/s of that memory, from the same sources
link       GB/s that a device sends to its neighbours. NVLink: half of the data sheets' figure, which counts
           both ways; PCIe 4.0 x16: 32; TPUs: a ring uses both directions of an axis, each with 50 (v5e) or
           100 (v5p, v6e): docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e} have 400, 1,200 and 800 a chip, both
           ways along 4, 6 and 4 links
network    GB/s that a GPU sends to another machine: 400 Gbit/s a GPU as in a DGX H100, H200 or B200, 200 in a
           DGX A100; -: one machine only
price      US dollars an hour for one device, on demand, without tax. None is from a bill: they were read in
           other people's transcripts of the pages, made on these days:
           lambda.ai/instances, per GPU of a machine of 8 (H100 PCIe: of 1), 20 September 2026;
           runpod.io/pricing, H200 in a secure pod, 7 October 2026 (github.com/api-evangelist/runpod);
           modal.com/pricing, 7 May and 1 July 2026 (github.com/api-evangelist/modal-labs);
           cloud.google.com/tpu/pricing, per chip, United States, 2026.
           RTX4090: docs.runpod.io/serverless/pricing, undated, of an active serverless worker; no pod's price

A figure that nobody asks for is left open (-): plan.py plans for devices with all figures.
"""

import math
import re
from dataclasses import dataclass

GIB = 2**30
PRICES_READ = "May to October 2026"  # the dates above


@dataclass(frozen=True)
class Device:
    """A GPU or a TPU chip."""

    name: str  # as --on has it
    kind: str  # as JAX calls it
    pattern: str  # a regular expression for what JAX may call it
    peak: float  # dense bfloat16 FLOP/s
    memory: int  # bytes
    bandwidth: float  # bytes/s of that memory
    link: float  # bytes/s that one device sends to its neighbours
    between_hosts: float | None  # bytes/s that a GPU sends to another host; None: one host only
    price: float  # dollars an hour
    price_source: str

    @property
    def is_gpu(self) -> bool:
        return not self.kind.startswith("TPU")

    @property
    def usable(self) -> int:
        """Bytes that a program may use: of a GPU's, the driver and the libraries take about a twentieth."""
        return int(0.95 * self.memory) if self.is_gpu else self.memory


# The first pattern that matches counts. A `$` keeps a name from matching a card that begins with it:
# an L4 is not an L40S, a 4090 not a 4090 Laptop. Columns have two spaces or more between them.
TABLE = """
name       kind                      pattern             peak  memory          bandwidth  link  network  price  source
RTX4090    NVIDIA GeForce RTX 4090   RTX 4090$            165  25.250627584         1008    32        -   0.76  docs.runpod.io/serverless/pricing
L4         NVIDIA L4                 L4$                  121  23.580639232          300    32        -   0.80  modal.com/pricing
A10        NVIDIA A10                A10$                 125  24.0                    -     -        -      -  -
A10G       NVIDIA A10G               A10G                  70  24.0                    -     -        -      -  -
A100-40GB  NVIDIA A100-SXM4-40GB     A100.*40GB           312  42.33101312          1555   300       25   1.99  lambda.ai/instances
A100       NVIDIA A100-SXM4-80GB     A100                 312  85.100068864         2039   300       25   2.79  lambda.ai/instances
H100-PCIe  NVIDIA H100 PCIe          H100 PCIe            756  84.942979072         2039    32        -   3.29  lambda.ai/instances
H100-NVL   NVIDIA H100 NVL           H[12]00 NVL          835  94.0                    -     -        -      -  -
H100       NVIDIA H100 80GB HBM3     H100                 989  84.942979072         3352   450       50   3.99  lambda.ai/instances
H200       NVIDIA H200 141GB HBM3e   H200                 989  151.397597184        4800   450       50   4.59  runpod.io/pricing
B200       NVIDIA B200               B200                2250  191.514411008        7672   900       50   6.69  lambda.ai/instances
v4         TPU v4                    TPU v4$              275  34.359738368            -     -        -      -  -
v5e        TPU v5 lite               TPU v5 lite|TPU v5e  197  16.911433728          819   100        -   1.20  cloud.google.com/tpu/pricing
v5p        TPU v5                    TPU v5p|TPU v5$      459  102.800042229        2765   200        -   4.20  cloud.google.com/tpu/pricing
v6e        TPU v6 lite               TPU v6 lite|TPU v6e  918  33.5544320           1638   200        -   2.70  cloud.google.com/tpu/pricing
"""  # noqa: E501


def read_row(line: str) -> Device:
    name, kind, pattern, *figures, source = re.split(r"\s{2,}", line)
    numbers = [math.nan if text == "-" else float(text) for text in figures]
    peak, memory, bandwidth, link, network, price = numbers
    between_hosts = None if math.isnan(network) else network * 1e9
    return Device(
        *(name, kind, pattern, peak * 1e12, round(memory * 1e9), bandwidth * 1e9),
        *(link * 1e9, between_hosts, price, source),
    )


DEVICES = [read_row(line) for line in TABLE.strip().splitlines()[1:]]


def known_device(kind: str) -> Device | None:
    """Return the device that JAX calls `kind`; None for an unknown one, or a slice of one (MIG)."""
    if "MIG" in kind:
        return None
    return next((device for device in DEVICES if re.search(rf"\b({device.pattern})(?!\w)", kind)), None)


# The fastest attention that JAX has, by what JAX calls the device; the first pattern that fits counts.
FASTEST_ATTENTION = {
    # cuDNN's attention needs compute capability 8.0 (docs.nvidia.com/cudnn/operations/Attention), Ampere's.
    r"GTX|TITAN|Quadro|RTX 20|V100|\b[KMPT]\d": "einsum",
    # 0.8 to 2.3 times as fast as FlashAttention-2 (huggingface/transformers#48163, pytorch/pytorch#192799),
    # where attention in separate operations has a third of its speed or less (arXiv:2307.08691, 4.1).
    r"NVIDIA": "cudnn",
    # As in MaxText, Google's own trainer (AI-Hypercomputer/maxtext, layers/attention_op.py).
    r"TPU": "splash",
}
