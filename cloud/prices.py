"""Modal's prices, and the most that a launch can cost: it is said before anything is rented.

Prices are dollars an hour in Modal's default regions, preemptible, without tax; chosen regions cost 1.5 to
1.75 times as much. They change: look at modal.com/pricing. These are its prices as others wrote them down:
techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026 (7 May 2026), B200:
blaxel.ai/blog/modal-pricing-alternatives-guide, a core: beam.cloud/blog/modal-pricing-explained (27 June
2026). The prices of A10, A100-40GB, H200 and of memory are Modal's of 2025.
"""

import re
from dataclasses import dataclass

from config.command_line import UserError

READ = "2026"
GPU = {
    "T4": 0.59,
    "L4": 0.80,
    "A10": 1.10,
    "L40S": 1.95,
    "A100-40GB": 2.10,
    "A100-80GB": 2.50,
    "H100": 3.95,
    "H200": 4.54,
    "B200": 6.25,
}
ALIASES = {"A10G": "A10", "A100": "A100-40GB"}  # Modal's other names
CORE, GIB = 0.0000131 * 3600, 0.00000222 * 3600
CORES_PER_GPU, GIB_PER_GPU = 2, 16  # that a machine has for each GPU; without any, for itself
GIB_PER_CORE = 2  # at least, where the cores are asked for: a process that tokenizes takes less than one


@dataclass(frozen=True)
class Machine:
    """A machine to rent: any one of `gpus`, as Modal writes them ("H100:8"), or none, and its cores."""

    gpus: tuple[str, ...]
    asked_cores: int | None = None  # None: as many as go with its GPUs

    @classmethod
    def parse(cls, text: str, cores: int | None = None) -> "Machine":
        """Read --gpu: `none`, or GPUs to try in turn, as in H100:2,A100-80GB:2. Raises UserError."""
        if text == "none":
            return cls((), cores)
        for gpu in text.split(","):
            name, count = split(gpu)
            if name not in GPU or not 1 <= count <= 8:
                known = ", ".join((*GPU, "none"))
                raise UserError(f"--gpu={text}: {gpu} is none of {known}, or 2 to 8 of one, as in H100:8")
        return cls(tuple(text.split(",")), cores)

    @property
    def count(self) -> int:
        """The most GPUs that it may have."""
        return max((split(gpu)[1] for gpu in self.gpus), default=0)

    @property
    def cores(self) -> float:
        return float(self.asked_cores or CORES_PER_GPU * max(1, self.count))

    @property
    def gib(self) -> int:
        return max(GIB_PER_GPU * max(1, self.count), GIB_PER_CORE * (self.asked_cores or 0))

    @property
    def price(self) -> float:
        """Dollars an hour for the dearest of its GPUs, its cores and its memory."""
        gpus = max((GPU[name] * count for name, count in map(split, self.gpus)), default=0.0)
        return gpus + self.cores * CORE + self.gib * GIB


def split(gpu: str) -> tuple[str, int]:
    """Return a GPU's name in the table and how many are meant: ("H100", 8) of "H100!:8"."""
    found = re.fullmatch(r"([A-Za-z0-9-]+)!?(?::(\d{1,2}))?", gpu)
    if found is None:
        return gpu, 1
    name = found[1].upper()
    return ALIASES.get(name, name), int(found[2] or 1)
