"""The launcher's own options, and what a launch can cost at most."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from config.command_line import Count, Name, NonNegative, UserError, given, option_types, split_options

RunName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
Hours = Annotated[float, Field(gt=0, le=24)]  # Modal's limit
Retries = Annotated[int, Field(ge=0, le=10)]  # Modal's limit
Cores = Annotated[int, Field(ge=1, le=64)]

GPUS = {  # by Modal's names: how its rate is called
    **{"T4": "t4", "L4": "l4", "A10": "a10g", "A10G": "a10g", "L40S": "l40s", "A100": "a100_40gb"},
    **{"A100-40GB": "a100_40gb", "A100-80GB": "a100_80gb", "RTX-PRO-6000": "rtx6000"},
    **{"H100": "h100", "H200": "h200", "B200": "b200", "B200+": "b300"},
}
# Dollars an hour in Modal's default regions, preemptible, without tax; for who may not ask Modal.
RATES_READ = "September 2026"
BY_GPU = {
    **{"t4": 0.59, "l4": 0.80, "a10g": 1.10, "l40s": 1.95, "a100_40gb": 2.10, "a100_80gb": 2.50},
    **{"rtx6000": 3.03, "h100": 3.95, "h200": 4.54, "b200": 6.25, "b300": 7.10},
}
RATES = {f"gpu_hour_cost_{name}": rate for name, rate in BY_GPU.items()}
RATES |= {"cpu_hour_cost": 0.0473, "mem_gib_hour_cost": 0.008}
RESTARTS = 10  # of a run, beside its attempts: Modal counts none when it takes a machine away
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


def machine_of(options: LaunchOptions, rates: Mapping[str, float] = RATES) -> Machine:
    """Return the machine to rent. Raises UserError for GPUs that Modal does not have."""
    gpus = [] if options.gpu == "none" else options.gpu.split(",")
    count = 0
    dollars = 0.0
    for gpu in gpus:
        found = re.fullmatch(r"([\w+-]+)!?(?::([1-8]))?", gpu.upper())
        number = int(found[2] or 1) if found else 0
        if found is None or found[1] not in GPUS or (GPUS[found[1]] == "a10g" and number > 4):
            raise UserError(
                f"--gpu={options.gpu}: {gpu} is none of {', '.join((*GPUS, 'none'))}, or 2 to 8 of one, "
                "as in H100:8 (of A10, 2 to 4)"
            )
        count = max(count, number)
        dollars = max(dollars, number * rates[f"gpu_hour_cost_{GPUS[found[1]]}"])
    cores = float(options.cores or 2 * max(1, count))
    gib = max(16 * max(1, count), 2 * (options.cores or 0))
    dollars += BURST * (cores * rates["cpu_hour_cost"] + gib * rates["mem_gib_hour_cost"])
    return Machine(gpus, count, cores, gib, dollars)
