"""The machines that Modal rents, and what they cost.

A rate is dollars an hour in Modal's default regions, preemptible, without tax; chosen regions cost 1.5 to
1.75 times as much. Modal's client says what holds now (places.py); RATES is what its `modal billing rates`
said in September 2026, for commands that ask nothing of Modal.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from config.command_line import UserError

READ = "September 2026"
GPU = {  # modal.com/docs/guide/gpu; each with the end of its rate's name
    "T4": ("t4", 0.59),
    "L4": ("l4", 0.80),
    "A10": ("a10g", 1.10),
    "L40S": ("l40s", 1.95),
    "A100-40GB": ("a100_40gb", 2.10),
    "A100-80GB": ("a100_80gb", 2.50),
    "RTX-PRO-6000": ("rtx6000", 3.03),
    "H100": ("h100", 3.95),
    "H200": ("h200", 4.54),
    "B200": ("b200", 6.25),
    "B200+": ("b300", 7.10),  # it may be one
}
RATES = {f"gpu_hour_cost_{name}": dollars for name, dollars in GPU.values()}
RATES |= {"cpu_hour_cost": 0.0473, "mem_gib_hour_cost": 0.008}
ALIASES = {"A10G": "A10", "A100": "A100-40GB"}  # Modal's other names
CORES_PER_GPU, GIB_PER_GPU = 2, 16  # that a machine has for each GPU; without any, for itself
GIB_PER_CORE = 2  # at least, where the cores are asked for: a process that tokenizes takes less than one
BURST = 2  # times its cores and memory, which a machine may use while others leave them, and pays for then


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
            if name not in GPU or not 1 <= count <= (4 if name == "A10" else 8):
                known = ", ".join((*GPU, "none"))
                raise UserError(
                    f"--gpu={text}: {gpu} is none of {known}, or 2 to 8 of one, as in H100:8 (of A10, 2 to 4)"
                )
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

    def price(self, rates: Mapping[str, float] = RATES) -> float:
        """Return the dollars an hour for the costliest of its GPUs, and the cores and GiB that it may use."""
        gpus = (rates[f"gpu_hour_cost_{GPU[name][0]}"] * count for name, count in map(split, self.gpus))
        rest = self.cores * rates["cpu_hour_cost"] + self.gib * rates["mem_gib_hour_cost"]
        return max(gpus, default=0.0) + BURST * rest


def split(gpu: str) -> tuple[str, int]:
    """Return a GPU's name in the table and how many are meant: ("H100", 8) of "H100!:8"."""
    found = re.fullmatch(r"([A-Za-z0-9-]+\+?)!?(?::(\d{1,2}))?", gpu)
    if found is None:
        return gpu, 1
    name = found[1].upper()
    return ALIASES.get(name, name), int(found[2] or 1)
