"""Reports of whoever has a card: `bench.py --report=FILE` writes one, and docs/measured/ keeps them."""

import json
import math
import subprocess
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import jax
from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field, model_validator

from common.command_line import Count, Positive, first_problem, matching
from common.errors import UserError
from common.files import write_whole
from config.options import Options
from parallel.machines import peak_memory
from tools.benchmarks.variants import JaxStep
from training.state import model_config

Version = Literal[1]  # of the form; a report of another one is refused

# Ten steps learn one batch of random tokens by heart, with attention that every device has in float32.
CHECK = Options(
    n_layer=2,
    n_head=2,
    n_embd=128,
    block_size=64,
    batch_size=16,
    gradient_accumulation_steps=1,
    dtype="float32",
    attention="einsum",
    learning_rate=3e-3,
    decay_lr=False,
)
REFERENCE = [
    *(4.23648643, 3.8999896, 3.70190167, 3.60651398, 3.34646034),
    *(3.21706247, 2.9757843, 2.73338366, 2.5263052, 2.27463388),
]
# About 100 operations in a row are rounded to u = 2^-24, the products sums of 200 terms: sqrt(100 * 200) u.
# On a CPU, meshes and microbatches change the losses by 1e-6, products in bfloat16 by 1e-4 to 1e-3.
TOLERANCE = 1e-5

Share = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0, lt=2**50)]
Text = Annotated[str, matching(r"[^\x00-\x1f|<>`]{1,1000}", "a short text without | < > `")]
TenLosses = Annotated[list[Positive], Field(min_length=10, max_length=10)]


class Form(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Shares(Form):
    planned: Share
    measured: Share


class Losses(Form):
    measured: TenLosses
    reference: TenLosses
    tolerance: Positive

    @computed_field
    @property
    def right(self) -> bool:
        pairs = zip(self.measured, self.reference, strict=True)
        return all(math.isclose(x, y, rel_tol=self.tolerance) for x, y in pairs)


class Report(Form):
    form: Version
    device: Text
    devices: Count
    driver: Text | None
    cpu: Text
    versions: dict[Text, Text]
    commit: Annotated[str, matching("[0-9a-f]{40}", "40 hexadecimal digits")]
    date: date
    command: Text
    options: dict[str, Any]  # that are not train.py's defaults
    dtype: Literal["float32", "bfloat16"]
    tokens: Count  # of a step
    ms: Positive
    tokens_per_second: Positive
    mfu: Share | None
    memory_bytes: Bytes  # as XLA plans it
    peak_memory_bytes: Bytes
    planned_ms: Positive | None
    classes: dict[Text, Shares]
    losses: Losses

    @model_validator(mode="after")
    def adds_up(self) -> Self:
        if not math.isclose(self.tokens_per_second * self.ms, 1e3 * self.tokens, rel_tol=0.01):
            rate = f"{self.tokens_per_second:.4g} tokens/s"
            raise ValueError(f"{rate} are not {self.tokens} tokens in {self.ms:.4g} ms")
        if (self.losses.reference, self.losses.tolerance) != (REFERENCE, TOLERANCE):
            raise ValueError("the losses' reference or tolerance is not this version's")
        for kind in ("planned", "measured"):
            total = sum(getattr(share, kind) for share in self.classes.values())
            if self.classes and not math.isclose(total, 1, rel_tol=0.01):
                raise ValueError(f"the {kind} shares of the classes add up to {total:.4g}, not to 1")
        return self


def read_report(path: Path) -> Report:
    """Read a report. Raises UserError."""
    try:
        return Report.model_validate_json(path.read_bytes())
    except ValidationError as error:
        again = "make it again: python bench.py ... --report=FILE"
        raise UserError(f"{path}: {first_problem(error)}; {again}") from None


def write_report(path: Path, record: dict[str, Any], options: Options, losses: Losses) -> None:
    """Write what `--json` records, of the step alone, and what else a reader elsewhere has to know."""
    step = record.pop("figures")[0]
    changed = {name: value for name, value in vars(options).items() if value != getattr(Options, name)}
    more = {"options": changed, "peak_memory_bytes": peak_memory(), "losses": losses.model_dump()}
    report = {"form": get_args(Version)[0], "driver": driver()} | record | step | more
    write_whole(path, json.dumps(report, indent=1) + "\n")


def driver() -> str | None:
    """Return the version of a TPU's runtime, or of an NVIDIA card's driver."""
    if jax.devices()[0].platform == "tpu":
        return " ".join(jax.devices()[0].client.platform_version.split())
    failed, text = subprocess.getstatusoutput("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    return None if failed else text.split("\n")[0]


def ten_losses() -> Losses:
    """Return the losses of ten steps on the device mesh beside the reference. Raises UserError."""
    with jax.default_matmul_precision("highest"):  # float32 on a TPU, and on a GPU without TF32
        step = JaxStep(model_config(CHECK, 65), CHECK)
    losses = []
    for _ in REFERENCE:
        step.state, metrics = step.train_step(step.state, *step.batches[0])
        losses.append(float(metrics["loss"]))
    return Losses(measured=losses, reference=REFERENCE, tolerance=TOLERANCE)
