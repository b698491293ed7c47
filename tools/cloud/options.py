"""The launcher's own options, and the machine that they ask for."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from config.command_line import (
    Count,
    Name,
    NonNegativeInt,
    Positive,
    UserError,
    check_values,
    given,
    matching,
    option_types,
    take_options,
)

RunName = Annotated[str, matching(r"\w[\w.-]*", "letters, digits, . _ and -")]

# Dollars an hour in Modal's default regions, without tax: `modal billing rates`, as others read it. All but
# B200+ also stand in a transcript of modal.com/pricing of 1 July 2026 (github.com/api-evangelist/modal-labs).
PRICES_READ = "September 2026"
GPUS = {
    **{"none": 0.0, "T4": 0.59, "L4": 0.80, "A10": 1.10, "L40S": 1.95, "A100-40GB": 2.10, "A100-80GB": 2.50},
    **{"RTX-PRO-6000": 3.03, "H100": 3.95, "H200": 4.54, "B200": 6.25, "B200+": 7.10},
}
CORE = 0.0473
GIB = 0.008
BURST = 2  # times its cores and memory, which a machine may use


@dataclass(frozen=True)
class LaunchOptions:
    """The options of the launcher. A comment is the text in `--help`."""

    program: ClassVar[str] = "app.py"
    purpose: ClassVar[str] = (
        "Run a command on Modal, or here: docs/cloud.md. Other options go to the command's script."
    )

    run_on_remote: bool = False  # run on Modal, not on this machine
    gpu: Name = "A10"  # T4, L4, L40S, A100-80GB, H100, H200, B200, ...; H100:8: eight; none
    cores: Count | None = None  # CPU cores, with 2 GiB each at least; None: 2 for each GPU
    timeout_hours: Positive = 4.0  # of one attempt; the next one resumes
    retries: NonNegativeInt = 2  # further attempts, when time is up or the run is killed
    max_dollars: Positive = 20.0  # refuse what could cost more, all attempts together
    run_name: RunName = ""  # folder of the run; by default the name of its out_dir
    secret: Name = ""  # names of Modal secrets, with commas, as of one with WANDB_API_KEY
    parallel: Count = 4  # runs of a sweep at a time, at most
    dry_run: bool = False  # print what would be rented, and at what cost


def split_launch(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the launcher's options that are given, and the other words. Raises UserError."""
    if "--help" in argv or "-h" in argv:
        given(["--help"], LaunchOptions)
    texts, words = take_options(argv, option_types(LaunchOptions, limits=False))
    return check_values(texts, "--", LaunchOptions), words


class Machine(NamedTuple):
    cores: int
    gib: int
    dollars: float  # an hour, at most


def machine_of(options: LaunchOptions) -> Machine:
    """Return the machine to rent. Raises UserError for an unknown GPU."""
    gpu, _, number = options.gpu.partition(":")
    if gpu not in GPUS or not re.fullmatch("[1-8]?", number):
        raise UserError(f"--gpu={options.gpu}: expected one of {', '.join(GPUS)}, or 2 to 8, as in H100:8")
    count = int(number or 1)
    cores = options.cores or 2 * count
    gib = max(16 * count, 2 * cores)
    return Machine(cores, gib, count * GPUS[gpu] + BURST * (cores * CORE + gib * GIB))
