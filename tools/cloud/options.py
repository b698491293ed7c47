"""The launcher's own options, and what a launch can cost at most."""

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from config.command_line import (
    Count,
    Limit,
    Name,
    NonNegative,
    UserError,
    option_types,
)
from tools.cloud.prices import RATES, READ, Machine

RunName = Annotated[str, Limit("letters, digits, . _ and -", re.compile(r"\w[\w.-]*").fullmatch)]
Hours = Annotated[float, Limit("a number above 0, up to Modal's 24", lambda x: 0 < x <= 24)]
Retries = Annotated[int, Limit("an integer from 0 to Modal's 10", lambda x: 0 <= x <= 10)]
Cores = Annotated[int, Limit("an integer from 1 to 64", lambda x: 1 <= x <= 64)]

RESTARTS = 10  # of a run, beside its attempts: Modal counts none when it takes a machine away
CEILING = (
    "that is no ceiling: Modal also restarts a run whose machine it takes away, here up to "
    f"{RESTARTS} times; a budget at Modal is one: modal.com/docs/guide/budgets"
)


@dataclass(frozen=True)
class LaunchOptions:
    """The options of the launcher. The comment behind a field is its text in `--help`."""

    program: ClassVar[str] = "app.py"
    purpose: ClassVar[str] = (
        "Run a command on Modal, or here: train (without a name), sample, prepare, sweep, experiment, "
        "evaluate, bench, profile, export, serve, list, watch or fetch. Other options go to the command's "
        "script."
    )

    run_on_remote: bool = False  # run on Modal; without it, on this machine
    gpu: Name = (
        "A10"  # T4, L4, A10, L40S, A100-80GB, H100, H200, B200, ...; H100:8; A100-80GB,H100: either; none
    )
    cores: Cores | None = None  # CPU cores, with 2 GiB each at least; None: 2 for each GPU
    timeout_hours: Hours = 4.0  # time for one attempt; the next one goes on from the last checkpoint
    retries: Retries = 2  # attempts after the first, when time is up or the run is killed
    max_dollars: NonNegative = 20.0  # refuse what could cost more than this, all attempts together
    run_name: RunName = ""  # folder of the run; by default the name of its out_dir
    secret: Name = ""  # Modal secrets, with commas: one with WANDB_API_KEY, one with HF_TOKEN
    detach: bool = False  # the run goes on when this command is stopped; as modal run --detach
    nodes: Count = 1  # machines that train together, each with all its GPUs: --gpu=H100:8
    parallel: Count = 4  # runs of a sweep or an experiment at a time, at most
    dry_run: bool = False  # print what would be sent and rented, and at what cost, and end

    @property
    def machine(self) -> Machine:
        """The machine to rent. Raises UserError for an unknown GPU."""
        return Machine.parse(self.gpu, self.cores)

    @property
    def secrets(self) -> list[str]:
        return [name.strip() for name in self.secret.split(",") if name.strip()]


def separate_options(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the launcher's options in a command line, as --key=value, and the other words as they are."""
    ours, theirs, words = [], [], deque(argv)
    while words:
        word = words.popleft()
        key, equals, value = word.partition("=")
        kind = option_types(LaunchOptions).get(key.removeprefix("--").replace("-", "_"))
        if word in ("--help", "-h"):
            ours.append(word)
        elif kind is None or not key.startswith("--"):
            theirs.append(word)
        elif kind is bool:  # --run-on-remote, with or without "true" or "false", after a space or a "="
            if not equals and words and words[0].lower() in ("true", "false"):
                value = words.popleft()
            ours.append(f"{key}={value.capitalize() or True}")
        else:
            if not equals and words and not words[0].startswith("--"):
                value = words.popleft()
            ours.append(f"{key}={value}")
    return ours, theirs


def describe_cost(options: LaunchOptions, runs: int = 1, rates: Mapping[str, float] = RATES) -> str:
    """Return the line that says what the attempts of so many runs can cost at most. Raises UserError."""
    times = [
        f"{runs} runs x " if runs > 1 else "",
        f"{options.nodes} machines x " if options.nodes > 1 else "",
        f"{1 + options.retries} attempts x " if options.retries else "",
    ]
    machine = options.machine
    kind = f"{options.gpu}, cores" if machine.count else counted(machine.cores, "core")
    source = f"prices of {READ}, see tools/cloud/prices.py" if rates is RATES else "Modal's rates now"
    return (
        f"costs at most ${most_dollars(options, runs, rates):,.2f}: {''.join(times)}"
        f"{options.timeout_hours:g} h x ${machine.price(rates):.2f} ({kind} and memory; {source})"
    )


def counted(number: float, noun: str) -> str:
    """Return a number with its noun: 1 core, 2 cores."""
    return f"{number:g} {noun}{'s' * (number != 1)}"


def most_dollars(options: LaunchOptions, runs: int = 1, rates: Mapping[str, float] = RATES) -> float:
    """Return what a launch costs when every attempt takes all its time."""
    hours = options.timeout_hours * (1 + options.retries)
    return options.machine.price(rates) * options.nodes * hours * runs


def check_cost(options: LaunchOptions, dollars: float) -> None:
    """Raise UserError for what could cost more than the user allows, or cannot be rented."""
    if dollars > options.max_dollars:
        raise UserError(
            f"that is above --max-dollars={options.max_dollars:g}: give --max-dollars={math.ceil(dollars)}, "
            "or fewer --timeout-hours or --retries"
        )
    if options.nodes > 1 and options.machine.count < 8:
        raise UserError(f"--nodes={options.nodes} needs whole machines: --gpu=H100:8")
