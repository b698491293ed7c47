"""Predict a step from its plan, with the speeds of published runs, and say how far that may be off.

    expected = expect(cost.works, device)
    expected.seconds, expected.low, expected.high, expected.evidence

tools/planning/published.py fits the speeds, and says how it finds the interval.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from config.devices import Device
from config.files import read_json
from tools.planning.speeds import Shares, Speeds, Work

COVERED = 0.9  # of published runs lie within the interval


class Expected(NamedTuple):
    """Seconds of a step, and what stands behind them."""

    seconds: float
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
    return read_json(Path(__file__).with_name("fitted.json"))


def expect(works: Work, device: Device) -> Expected:
    """Return what a step would take if it were as fast as those of published runs in JAX."""
    found = fitted()
    seconds = Speeds.of(device, Shares(**found["shares"][device.family])).step(works)
    interval, evidence = "interval_of_others", f"no published run on {device.name}: those of other devices"
    if behind := found["evidence"].get(device.name):
        interval = "interval"
        evidence = f"{behind['runs']} published runs on {device.name}, of {', '.join(behind['sources'])}"
    low, high = found[interval]
    return Expected(seconds, low * seconds, high * seconds, evidence)
