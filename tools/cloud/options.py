"""The launcher's options, and the machine that they ask for with its price."""

import math
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from common.command_line import Count, Name, NonNegativeInt, Positive
from common.devices import DEVICES
from common.errors import UserError

# Modal's prices, in dollars an hour; common/devices.csv says where they were read.
GPUS = {"none": 0.0} | {x.at_modal: x.modal_price for x in DEVICES if x.at_modal != "-"}
CORE = 0.0473
GIB = 0.008
BURST = 2  # times its cores and memory, which a machine may use


@dataclass(frozen=True)
class LaunchOptions:
    """Run a command on Modal, or here: docs/cloud.md. Other words are the command's."""

    run_on_remote: bool = False  # run on Modal, not on this machine
    gpu: Name = "A10"  # T4, L4, L40S, A100-80GB, H100, H200, B200, ...; H100:8: eight; none
    cores: Count | None = None  # CPU cores, with 2 GiB each at least; None: 2 for each GPU
    timeout_hours: Annotated[Positive, Field(le=24)] = 4.0  # of one attempt; the next one resumes
    retries: NonNegativeInt = 2  # further attempts, when time is up or the run is killed
    max_dollars: Positive = 20.0  # refuse what could cost more, all attempts together
    secret: Name = ""  # names of Modal secrets, with commas, as of one with WANDB_API_KEY
    dry_run: bool = False  # print what would be rented, and at what cost


def machine_of(options: LaunchOptions) -> tuple[int, int, float]:
    """Return the cores, the GiB and the most dollars an hour of a machine. Raises UserError."""
    gpu, colon, number = options.gpu.partition(":")
    most = 4 if gpu == "A10" else 8  # in a machine of Modal's
    if gpu not in GPUS or colon and (gpu == "none" or not re.fullmatch(f"[1-{most}]", number)):
        expected = f"expected one of {', '.join(GPUS)}, or 2 to {most}, as in H100:{most}"
        raise UserError(f"--gpu={options.gpu}: {expected}")
    count = int(number or 1)
    cores = options.cores or 2 * count
    gib = max(16 * count, 2 * cores)
    return cores, gib, count * GPUS[gpu] + BURST * (cores * CORE + gib * GIB)


def say_price(options: LaunchOptions) -> None:
    """Print what a launch can cost. Raises UserError above the ceiling, unless nothing is rented."""
    cores, gib, an_hour = machine_of(options)
    attempts = 1 + options.retries
    cents = round(100 * attempts * options.timeout_hours * an_hour, 6)
    dollars = math.ceil(cents) / 100  # a ceiling is never rounded down
    times = f"{attempts} attempts x " if attempts > 1 else ""
    print(
        f"costs at most ${dollars:,.2f}: {times}{options.timeout_hours:g} h x ${an_hour:.2f} "
        f"({options.gpu}, {cores} cores, {gib} GiB; prices of September 2026), "
        "beside restarts when Modal takes a machine away: a budget at Modal is a ceiling",
        flush=True,
    )
    if dollars > options.max_dollars and not options.dry_run:
        raise UserError(
            f"that is above --max-dollars={options.max_dollars:g}: give --max-dollars={math.ceil(dollars)}, "
            "or fewer --timeout-hours or --retries"
        )
