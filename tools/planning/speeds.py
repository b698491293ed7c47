"""How fast a device works: what operations ask of it, and the seconds that they take.

    speeds = Speeds.of(device, AT_BEST["gpu"])        shares of its data sheet's peaks
    step_seconds(works, speeds)

The shares at best are what a good kernel reaches. Those of published runs are fitted
(tools/planning/published.py), and the peaks of the machine at hand are measured (tools/planning/here.py).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from config.devices import Device


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


@dataclass(frozen=True)
class Shares:
    """Says what a step reaches of a device's peaks, and how long kernels and messages take to start."""

    products: float  # of the peak, on a device that does BALANCED operations for each byte of bandwidth
    memory: float  # of the bandwidth
    network: float  # of the links, within a machine and between machines
    kernel: float  # seconds to start a kernel
    message: float  # seconds to start a collective
    balance: float = 0.0  # the exponent by which products' share falls on a device that does more
    exponentials: float = 1.0  # of the rate that was measured
    hidden: float = 1.0  # of the time of messages, and a TPU's copies to the chip, that could be hidden


# A TPU runs the step as one program.
AT_BEST = {
    "gpu": Shares(products=0.8, memory=0.9, network=0.8, kernel=1.5e-6, message=1.5e-6),
    "tpu": Shares(products=0.8, memory=0.9, network=0.8, kernel=0.0, message=0.0),
}
# A CPU's are of the peaks that tools/planning/here.py measures, fitted to the steps in docs/planning.md.
HERE = Shares(products=0.8, memory=0.4, network=1.0, kernel=0.0, message=0.0, exponentials=0.3)
Curve = tuple[tuple[float, float], ...]  # the rate at some sizes, and between and beyond them


def rate(curve: Curve, size: Any) -> Any:
    """Return the rate at a size, on straight lines over the size's logarithm."""
    if len(curve) == 1:
        return curve[0][1]
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
    hidden: float
    exponentials: float = np.inf  # per second

    @classmethod
    def of(cls, device: Device, shares: Shares) -> "Speeds":
        balance = device.peak / device.bandwidth / BALANCED
        products = shares.products * device.peak * balance**-shares.balance
        return cls(
            bfloat16=((1.0, products),),
            # A GPU multiplies float32 as TF32; a TPU rounds it to bfloat16.
            float32=((1.0, products / 2 if device.is_gpu else products),),
            memory=((1.0, shares.memory * device.bandwidth),),
            link=shares.network * device.link,
            between_hosts=shares.network * (device.between_hosts or np.inf),
            kernel=shares.kernel,
            message=shares.message,
            hidden=shares.hidden,
        )

    @classmethod
    def measured(cls, peaks: dict[str, Any], shares: Shares) -> "Speeds":
        """Return shares of the peaks that tools/planning/here.py measured."""

        def curve(name: str, share: float) -> Curve:
            return tuple((size, share * rate) for size, rate in peaks[name])

        return cls(
            bfloat16=curve("bfloat16", shares.products),
            float32=curve("float32", shares.products),
            memory=curve("memory", shares.memory),
            link=peaks["memory"][-1][1],
            between_hosts=np.inf,
            kernel=peaks["kernel"],
            message=peaks["kernel"],
            hidden=1.0,
            exponentials=shares.exponentials * peaks["exponentials"],
        )

    def seconds(self, work: Work) -> dict[str, Any]:
        """Return the seconds of one run by what may bound it, in the order that decides a tie."""
        return {
            "products": work.flops
            / np.where(work.float32, rate(self.float32, work.flops), rate(self.bfloat16, work.flops)),
            "memory": work.bytes / rate(self.memory, work.bytes) + work.exponentials / self.exponentials,
            "network": np.maximum(work.sent / self.link, work.between_hosts / self.between_hosts),
            "start": np.where(work.collective, self.message, self.kernel),
        }


def step_seconds(works: Work, speeds: Speeds, starts: Any = (0,)) -> Any:
    """Return the seconds of each step that hides what it can as far as these speeds say.

    `works` has the steps' operations one after another, and `starts` where each step begins.
    """
    alone = seconds_alone(works, speeds)
    total, hidden = np.add.reduceat(alone, starts), hidden_seconds(works, speeds, starts)
    return total - speeds.hidden * (total - hidden)


def seconds_alone(works: Work, speeds: Speeds) -> Any:
    """Return the seconds of all runs of each operation, one after another."""
    times = speeds.seconds(works)
    start = times.pop("start")
    return works.times * (np.maximum.reduce(list(times.values())) + start)


def hidden_seconds(works: Work, speeds: Speeds, starts: Any = (0,)) -> Any:
    """Return the seconds of steps that hide messages, and a TPU's copies to the chip, as far as they can."""
    alone = seconds_alone(works, speeds)
    bounds = (
        np.where(works.under_others, 0.0, alone),
        works.times * works.bytes / rate(speeds.memory, works.bytes),
        np.where(works.collective, alone, 0.0),
    )
    return np.maximum.reduce([np.add.reduceat(bound, starts) for bound in bounds])
