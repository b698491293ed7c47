"""The launcher's own options, and what a launch can cost at most."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from config.command_line import Count, Limit, Name, NonNegative, UserError, given, option_types, split_options

RunName = Annotated[str, Limit("letters, digits, . _ and -", re.compile(r"\w[\w.-]*").fullmatch)]
Hours = Annotated[float, Limit("a number above 0, up to Modal's 24", lambda x: 0 < x <= 24)]
Retries = Annotated[int, Limit("an integer from 0 to Modal's 10", lambda x: 0 <= x <= 10)]
Cores = Annotated[int, Limit("an integer from 1 to 64", lambda x: 1 <= x <= 64)]

# Dollars an hour in Modal's default regions, preemptible, without tax.
RATES_READ = "September 2026"
GPU_RATES = {
    **{"T4": 0.59, "L4": 0.80, "A10": 1.10, "A10G": 1.10, "L40S": 1.95, "A100": 2.10, "A100-40GB": 2.10},
    **{"A100-80GB": 2.50, "RTX-PRO-6000": 3.03, "H100": 3.95, "H200": 4.54, "B200": 6.25, "B200+": 7.10},
}
CORE_RATE, GIB_RATE = 0.0473, 0.008
BURST = 2  # times its cores and memory: the limit of what a machine may use, and is billed for


@dataclass(frozen=True)
class LaunchOptions:
    """The options of the launcher. A comment is the text in `--help`."""

    program: ClassVar[str] = "app.py"
    purpose: ClassVar[str] = (
        "Run a command on Modal, or here: docs/cloud.md. Other options go to the command's script."
    )

    run_on_remote: bool = False  # run on Modal; without it, on this machine
    gpu: Name = "A10"  # T4, L4, L40S, A100-80GB, H100, H200, B200, ...; H100:8; L4,A10: either; none
    cores: Cores | None = None  # CPU cores, with 2 GiB each at least; None: 2 for each GPU
    timeout_hours: Hours = 4.0  # time for one attempt; the next one goes on from the last checkpoint
    retries: Retries = 2  # attempts after the first, when time is up or the run is killed
    max_dollars: NonNegative = 20.0  # refuse what could cost more than this, all attempts together
    run_name: RunName = ""  # folder of the run; by default the name of its out_dir
    secret: Name = ""  # Modal secrets, with commas: one with WANDB_API_KEY, one with HF_TOKEN
    detach: bool = False  # the run goes on when this command is stopped; as modal run --detach
    nodes: Count = 1  # machines that train together, each with all its GPUs: --gpu=H100:8
    parallel: Count = 4  # runs of a sweep or an experiment at a time, at most
    dry_run: bool = False  # print what would be rented, and at what cost, and end

    @property
    def secrets(self) -> list[str]:
        return [name.strip() for name in self.secret.split(",") if name.strip()]


def split_launch(argv: list[str], defaults: Mapping[str, Any] = {}) -> tuple[LaunchOptions, list[str]]:
    """Return the launcher's options in a command line, and the other words. Raises UserError.

    A flag takes true or false after a space as well.
    """
    if "--help" in argv or "-h" in argv:
        given(["--help"], LaunchOptions)
    words = [f"--{name}={value}" for name, value in defaults.items()]
    flag = False
    for word in argv:
        key, _, text = word.partition("=")
        if flag and word.lower() in ("true", "false"):
            words[-1] += f"={word.title()}"
            flag = False
            continue
        name = key.removeprefix("--").replace("-", "_")
        is_flag = key.startswith("--") and option_types(LaunchOptions).get(name) is bool
        words.append(f"{key}={text.title()}" if is_flag and text else word)
        flag = is_flag and not text
    return split_options(words, LaunchOptions)


class Machine(NamedTuple):
    """A machine at Modal: one of `gpus`, such as H100:8, or none."""

    gpus: list[str]
    count: int  # the most GPUs that it may have
    cores: float
    gib: int
    dollars: float  # an hour, at most


def machine_of(options: LaunchOptions) -> Machine:
    """Return the machine to rent. Raises UserError for an unknown GPU."""
    gpus = [] if options.gpu == "none" else options.gpu.split(",")
    count = 0
    dollars = 0.0
    for gpu in gpus:
        found = re.fullmatch(r"([\w+-]+)!?(?::([1-8]))?", gpu.upper())
        if found is None or found[1] not in GPU_RATES:
            raise UserError(
                f"--gpu={options.gpu}: {gpu} is none of {', '.join((*GPU_RATES, 'none'))}, or 2 to 8 of one, "
                "as in H100:8"
            )
        number = int(found[2] or 1)
        count = max(count, number)
        dollars = max(dollars, number * GPU_RATES[found[1]])
    cores = float(options.cores or 2 * max(1, count))
    gib = max(16 * max(1, count), 2 * (options.cores or 0))
    return Machine(gpus, count, cores, gib, dollars + BURST * (cores * CORE_RATE + gib * GIB_RATE))
