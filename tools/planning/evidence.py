"""Training runs that others have measured and published: tools/planning/published.json, read and checked.

A row has the figure, where it stands, the options of the nearest step that we can plan, what differs from it,
and what was assumed.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from config.command_line import UserError
from config.files import read_json
from config.options import Options
from model import GPTConfig
from runs.sizes import flops_per_token
from tools.planning.fit import count_parameters
from tools.planning.target import Target, parse_target
from training.state import model_config

FOLDER = Path(__file__).parent
STACKS = ("XLA", "compiled", "eager", "CUDA", "Megatron")  # software with kernels of one kind
AGREE = 0.03  # figures of one run may differ by as much


@dataclass(frozen=True)
class Run:
    """A run that others have published."""

    id: str
    by: str  # who published it; errors are given with all runs of one left out
    source: str
    place: str  # of the figure in the source
    date: str
    on: str  # the devices, as plan.py's --on
    software: str
    stack: str
    options: dict[str, Any]
    published: dict[str, float]  # figures as the source has them
    assumed: list[str]
    differs: list[str]
    flops: str = ""  # what the source counts as a token's FLOPs
    peak: float = 0.0  # TFLOP/s that the source takes for 100%
    definition: str = ""  # of the source's MFU, in words
    sweep: str = ""  # the name of runs that differ in their mesh alone
    fits: bool = True  # False: our step does other work, and the run counts for the order of its sweep alone
    target: Target = field(init=False)
    config: GPTConfig = field(init=False)

    def __post_init__(self):
        origin = f"published run {self.id}"
        if not (self.source and self.place and self.date):
            raise UserError(f"{origin}: give its source, the place there, and the date")
        if self.stack not in STACKS:
            raise UserError(f"{origin}: unknown stack {self.stack!r}; known are {', '.join(STACKS)}")
        object.__setattr__(self, "target", parse_target(self.on))
        object.__setattr__(self, "config", model_config(self.all_options, self.options["vocab_size"]))
        seconds = self.implied_seconds()
        if not seconds:
            raise UserError(f"{origin}: it has no figure that gives the seconds of a step")
        least, most = (pick(seconds, key=lambda name: seconds[name]) for pick in (min, max))
        if seconds[most] > (1 + AGREE) * seconds[least]:
            raise UserError(
                f"{origin}: {least}={self.published[least]} makes {seconds[least]:.4g} s a step, and "
                f"{most}={self.published[most]} {seconds[most]:.4g}: see its definition"
            )

    @property
    def all_options(self) -> Options:
        return Options.from_json(asdict(Options()) | self.options, f"published run {self.id}")

    @property
    def seconds(self) -> float:
        """Seconds of a step, by the first of its figures."""
        return next(iter(self.implied_seconds().values()))

    def implied_seconds(self) -> dict[str, float]:
        """Return the seconds of a step that each figure stands for."""
        options, count = self.all_options, self.target.count
        rows = options.gradient_accumulation_steps * options.batch_size
        tokens = rows * options.block_size
        of = {
            "seconds_per_step": lambda x: x,
            "tokens_per_second": lambda x: tokens / x,
            "tokens_per_second_per_device": lambda x: tokens / x / count,
            "sequences_per_second": lambda x: rows / x,
            "tflops_per_second_per_device": lambda x: tokens * self.flops_per_token() / (x * 1e12 * count),
            "mfu": lambda x: tokens * self.flops_per_token() / (x * self.peak * 1e12 * count),
        }
        return {name: of[name](self.published[name]) for name in of if name in self.published}

    def flops_per_token(self) -> float:
        """Return a token's FLOPs as the source counts them. Raises UserError for an unknown way."""
        T, all_parameters = self.config.block_size, 6 * count_parameters(self.config)
        counts = {
            "6N": all_parameters,
            "6N+12LHQT": all_parameters + 12 * self.config.n_layer * self.config.n_embd * T,
            "6n+12LHQT": flops_per_token(self.config, T),  # n leaves out the embedding of the input
        }
        if self.flops not in counts:
            raise UserError(
                f"published run {self.id}: flops={self.flops!r}, expected one of {', '.join(counts)}"
            )
        return counts[self.flops]


def read_runs(path: Path = FOLDER / "published.json") -> list[Run]:
    """Read the published runs. Raises UserError for one that lacks a source or contradicts itself."""
    try:
        rows = read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as published runs: {error}") from None
    runs = []
    for row in rows:
        try:
            runs.append(Run(**row))
        except TypeError as error:
            raise UserError(f"{path}: {row.get('id')}: {error}") from None
    return runs
