"""Predict a step from its plan, with the speeds of published runs, and say how far that may be off.

    expected = expect(cost, device)
    expected.seconds, expected.low, expected.high, expected.evidence

tools/planning/published.py fits the speeds, and says how it finds the interval.
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from config.devices import Device
from config.files import read_json
from tools.planning.cost import Cost
from tools.planning.speeds import Shares, Speeds, step_seconds

COVERED = 0.9  # of published runs lie within the interval


class Expected(NamedTuple):
    """Seconds of a step, and what stands behind them."""

    seconds: float
    low: float  # COVERED of published runs would lie between
    high: float
    evidence: str


@cache
def fitted() -> dict[str, Any]:
    return read_json(Path(__file__).with_name("fitted.json"))


def expect(cost: Cost, device: Device) -> Expected:
    """Return what the step of a plan would take if it were as fast as those of published runs in JAX."""
    found = fitted()
    shares = Shares(**found["shares"]["gpu" if device.is_gpu else "tpu"])
    seconds = float(step_seconds(cost.works, Speeds.of(device, shares))[0])
    behind = found["evidence"].get(device.name)
    low, high = found["interval"]
    if behind:
        evidence = f"{behind['runs']} published runs on {device.name}, of {', '.join(behind['sources'])}"
    else:
        evidence = f"no published run on {device.name}: those of other devices"
        low, high = found["interval_of_others"]
    return Expected(seconds, low * seconds, high * seconds, evidence)
