"""Training runs that others have measured and published: tools/planning/published.json, read and checked."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from config.command_line import Positive, UserError, first_problem, matching
from config.options import Options
from model import GPTConfig
from runs.metrics import count_parameters, flops_per_token
from tools.planning.target import Target, parse_target
from training.state import model_config

FOLDER = Path(__file__).parent
AGREE = 0.03  # figures of one run may differ by as much

Text = Annotated[str, matching(".+", "a text")]
Stack = Literal["XLA", "compiled", "eager", "CUDA", "Megatron"]  # software with kernels of one kind
STACKS = get_args(Stack)


class Run(BaseModel, frozen=True, extra="forbid"):
    id: Text
    by: Text  # who published it; errors are given with all runs of one left out
    source: Annotated[str, matching("https?://.+", "a link")]
    place: Text  # of the figure in the source
    date: Annotated[str, matching(r"20\d\d(-\d\d){0,2}", "a date, as 2024-05-01")]
    on: Text  # the devices, as plan.py's --on
    software: Text
    stack: Stack
    options: dict[str, Any]  # of the nearest step that we can plan
    published: Annotated[dict[str, Positive], Field(min_length=1)]  # figures as the source has them
    assumed: list[Text]
    differs: list[Text]  # from that step
    flops: Literal["6N", "6N+12LHQT", "6n+12LHQT"] = "6N"  # what the source counts as a token's FLOPs
    peak: Positive = 1.0  # TFLOP/s that the source takes for 100%
    definition: str = ""  # of the source's MFU, in words
    sweep: str = ""  # the name of runs that differ in their mesh alone
    fits: bool = True  # False: our step does other work, and the run counts for the order of its sweep alone

    @model_validator(mode="after")
    def agrees(self) -> Self:
        seconds = self.implied_seconds()
        if max(seconds.values()) > (1 + AGREE) * min(seconds.values()):
            each = ", ".join(f"{name}={self.published[name]} {s:.4g}" for name, s in seconds.items())
            raise UserError(f"published run {self.id}: figures of different seconds a step: {each}")
        return self

    @cached_property
    def target(self) -> Target:
        return parse_target(self.on)

    @cached_property
    def all_options(self) -> Options:
        given = {"vocab_size": "missing"} | self.options
        return Options.from_json(vars(Options()) | given, f"published run {self.id}")

    @cached_property
    def config(self) -> GPTConfig:
        return model_config(self.all_options, self.options["vocab_size"])

    @property
    def seconds(self) -> float:
        """Seconds of a step, by the first of its figures."""
        return next(iter(self.implied_seconds().values()))

    def implied_seconds(self) -> dict[str, float]:
        """Return the seconds of a step that each figure stands for. Raises UserError for an unknown one."""
        options, count = self.all_options, self.target.count
        tokens = options.tokens_per_step
        teraflops = tokens * self.flops_per_token() / (1e12 * count)  # of a device
        of = {
            "seconds_per_step": lambda x: x,
            "tokens_per_second": lambda x: tokens / x,
            "tokens_per_second_per_device": lambda x: tokens / x / count,
            "sequences_per_second": lambda x: tokens / options.block_size / x,
            "tflops_per_second_per_device": lambda x: teraflops / x,
            "mfu": lambda x: teraflops / (x * self.peak),
        }
        if unknown := self.published.keys() - of.keys():
            raise UserError(f"published run {self.id}: figures are {', '.join(of)}, not {', '.join(unknown)}")
        return {name: of[name](self.published[name]) for name in of if name in self.published}

    def flops_per_token(self) -> float:
        """Return a token's FLOPs as the source counts them: n leaves out the embedding of the input."""
        if self.flops == "6n+12LHQT":
            return flops_per_token(self.config, self.config.block_size)
        attention = 12 * self.config.n_layer * self.config.n_embd * self.config.block_size
        return 6 * count_parameters(self.config) + (attention if self.flops == "6N+12LHQT" else 0)


def read_runs(path: Path = FOLDER / "published.json") -> list[Run]:
    """Read the published runs. Raises UserError for one that lacks a source or contradicts itself."""
    try:
        return TypeAdapter(list[Run]).validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}") from None
