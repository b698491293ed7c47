"""How fast a device works: what operations ask of it, and the seconds that they take.

The shares at best are what a good kernel reaches. Those of published runs are fitted
(tools/planning/published.py), and the rates of the machine at hand are measured (tools/planning/target.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.devices import Device
from common.files import read_json


class Work(NamedTuple):
    """Counts what one run of an operation needs. Many operations have an array in each field."""

    times: Any  # runs in a step
    flops: Any = 0.0
    float32: Any = False  # whether its products have float32 operands
    bytes: Any = 0.0
    exponentials: Any = 0.0
    sent: Any = 0.0  # bytes, to neighbours
    between_hosts: Any = 0.0  # bytes, to another machine
    collective: Any = False
    under_others: Any = False  # whether other kernels run meanwhile


def gather(works: list[Work]) -> Work:
    """Return one Work with an array in each field."""
    return Work(*map(np.array, zip(*works, strict=True)))


BALANCED = 150.0  # FLOPs at the peak for each byte: an A100's


class Shares(NamedTuple):
    """Says what a step reaches of a device's peaks, and how long kernels and messages take to start."""

    products: float  # of the peak, on a device that does BALANCED operations for each byte of bandwidth
    memory: float  # of the bandwidth
    network: float  # of the links, within a machine and between machines
    kernel: float  # seconds to start a kernel
    message: float  # seconds to start a collective
    hidden: float = 1.0  # of the time of messages, and a TPU's copies to the chip, that could be hidden
    balance: float = 0.0  # the exponent by which products' share falls on a device that does more


# A TPU runs the step as one program.
AT_BEST = {
    "gpu": Shares(products=0.8, memory=0.9, network=0.8, kernel=1.5e-6, message=1.5e-6),
    "tpu": Shares(products=0.8, memory=0.9, network=0.8, kernel=0.0, message=0.0),
}


def family_of(device: Device) -> str:
    return "tpu" if device.kind.startswith("TPU") else "gpu"


def usable(device: Device) -> int:
    """Return the bytes that a program may use: a GPU's driver and libraries take about a twentieth."""
    return int(0.95 * device.memory) if family_of(device) == "gpu" else device.memory


Curve = list[tuple[float, float]]  # the rate at some sizes


def rate(curve: Curve, size: Any) -> Any:
    """Return the rate at a size, on straight lines over the size's logarithm, and level beyond the ends."""
    sizes, rates = zip(*curve, strict=True)
    return np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), rates)


@dataclass(frozen=True)
class Speeds:
    bfloat16: Curve  # FLOP/s, by the FLOPs of a product
    float32: Curve
    memory: Curve  # bytes/s, by the bytes of an operation
    link: float  # bytes/s
    between_hosts: float
    kernel: float  # seconds
    message: float
    hidden: float = 1.0
    exponentials: float = np.inf  # per second

    @classmethod
    def of(cls, device: Device, shares: Shares) -> "Speeds":
        balance = device.peak / device.bandwidth / BALANCED
        products = shares.products * device.peak * balance**-shares.balance
        return cls(
            bfloat16=[(1.0, products)],
            # A GPU multiplies float32 as TF32; a TPU rounds it to bfloat16.
            float32=[(1.0, products / 2 if family_of(device) == "gpu" else products)],
            memory=[(1.0, shares.memory * device.bandwidth)],
            link=shares.network * device.link,
            between_hosts=shares.network * (device.between_hosts or np.inf),
            kernel=shares.kernel,
            message=shares.message,
            hidden=shares.hidden,
        )

    def bounds(self, works: Work) -> dict[str, Any]:
        """Return the seconds of one run of each operation by what may bound it, without its start."""
        products = np.where(works.float32, rate(self.float32, works.flops), rate(self.bfloat16, works.flops))
        return {
            "products": works.flops / products,
            "memory": works.bytes / rate(self.memory, works.bytes) + works.exponentials / self.exponentials,
            "network": np.maximum(works.sent / self.link, works.between_hosts / self.between_hosts),
        }

    def starts(self, works: Work) -> Any:
        """Return the seconds that each operation takes to start."""
        return np.where(works.collective, self.message, self.kernel)

    def alone(self, works: Work) -> Any:
        """Return the seconds of all runs of each operation, one after another."""
        return works.times * (np.maximum.reduce(list(self.bounds(works).values())) + self.starts(works))

    def overlapped(self, works: Work) -> float:
        """Return the seconds of a step that hides messages, and a TPU's copies to the chip, all it can."""
        alone = self.alone(works)
        copied = works.times * works.bytes / rate(self.memory, works.bytes)
        computing, sending = np.where(works.under_others, 0.0, alone), np.where(works.collective, alone, 0.0)
        return float(max(each.sum() for each in (computing, copied, sending)))

    def step(self, works: Work) -> float:
        """Return the seconds of a step that hides what it can as far as these speeds say."""
        total = float(self.alone(works).sum())
        return total - self.hidden * (total - self.overlapped(works))


COVERED = 0.9  # of published runs lie within the interval
ENOUGH = 5  # runs on a device; with fewer the interval is that of predictions without the device


class Expected(NamedTuple):
    seconds: float  # of a step
    low: float  # COVERED of published runs would lie between
    high: float
    evidence: str

    def spread(self, of: Callable[[float], float], unit: str = "") -> str:
        """Format a figure of the seconds of a step: as expected, and between its ends."""
        low, high = sorted([of(self.low), of(self.high)])
        return f"{unit}{short(of(self.seconds))} ({unit}{short(low)} to {unit}{short(high)})"


def short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


@cache
def fitted() -> dict[str, Any]:
    """Return the results of tools/planning/published.py."""
    return read_json(Path(__file__).with_name("fitted.json"))


def expect(works: Work, device: Device) -> Expected:
    """Return what a step would take if it were as fast as those of published runs in JAX."""
    found = fitted()
    seconds = Speeds.of(device, Shares(**found["shares"][family_of(device)])).step(works)
    known = found["evidence"].get(device.name, {"runs": 0, "sources": []})
    evidence = f"published runs on {device.name}: {known['runs']}"
    evidence += f", of {', '.join(known['sources'])}" if known["runs"] else ""
    low, high = found["interval" if known["runs"] >= ENOUGH else "interval_of_others"]
    return Expected(seconds, low * seconds, high * seconds, evidence)
