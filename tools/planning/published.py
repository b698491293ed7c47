"""What share of a device's peak published training steps reach: their model FLOPs utilisation (MFU)."""

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from common.devices import Device
from tools.planning.target import DEVICES, GPUS

ENOUGH = 5  # runs of a family; a family with fewer is expected to be like all GPUs, or all TPUs
MIDDLE = 0.8  # of the runs lie between the ends

RUNS = pd.read_csv(Path(__file__).with_name("published.csv"), comment="#")
RUNS["device"] = RUNS["on"].str.partition(":")[0]
RUNS["mfu"] = RUNS.flops_per_token * RUNS.tokens_per_second / RUNS.device.map(lambda x: DEVICES[x].peak)


class Published(NamedTuple):
    low: float
    median: float
    high: float
    least: float  # parameters of the smallest model
    evidence: str


def published_mfu(device: Device, runs: pd.DataFrame = RUNS) -> Published:
    """Return the median MFU of published runs on devices of the same family, and where the MIDDLE lies."""
    own = family(device.name)
    found = runs[runs.device.map(family) == own]
    if len(found) < ENOUGH:
        found = runs[(runs.device.map(family) == "TPU") == (own == "TPU")]
    low, median, high = found.mfu.quantile([(1 - MIDDLE) / 2, 0.5, (1 + MIDDLE) / 2])
    least, most = found.parameters.min(), found.parameters.max()
    names = ", ".join(found.device.unique())
    evidence = f"{len(found)} runs on {names}, {least / 1e9:.2g} to {most / 1e9:.2g} billion parameters"
    return Published(low, median, high, least, evidence)


def family(name: str) -> str:
    """Return the generation of a GPU, by its CUDA compute capability; TPUs are one family."""
    return f"{GPUS[name]['major']}.{GPUS[name]['minor']}" if name in GPUS else "TPU"
