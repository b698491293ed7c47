"""The options of learning from rewards, which a run keeps in rewards.json."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
from pydantic import AfterValidator, Field

from common.command_line import Count, Name, NonNegative, check_values, matching
from common.errors import UserError
from common.files import read_json, refusing
from config.options import RESUMING, Options
from data.tasks import named_tasks
from runs.load import lasting

# Absolute, so that it means the same from any folder.
Function = Annotated[Name, matching(r".+:\w+", "FILE.py:FUNCTION"), AfterValidator(os.path.abspath)]


@dataclass(frozen=True)
class RewardOptions:
    tasks: Name = "all"
    reward: Function | None = None
    group: Annotated[Count, Field(ge=2)] = 8
    max_new_tokens: Count = 32
    kl: NonNegative = 0.0
    tested: Count = 50


@dataclass(frozen=True)
class Kept(RewardOptions):
    """Holds the options that rewards.json keeps."""

    start: Name = "scratch"  # the weights that learning began with
    fingerprint: str = ""  # of these, once they are loaded


def kept_options(options: Options, values: dict[str, Any]) -> Kept:
    """Return the options of rewards; a resumed run keeps those that it began with. Raises UserError."""
    path = Path(options.out_dir, "rewards.json")
    if options.init_from not in RESUMING:
        return Kept(**values, start=lasting(options.init_from))
    with refusing(f"{path}: cannot be read", "restore it, or begin another run", ValueError):
        found = read_json(path, dict[str, Any])
    kept = Kept(**check_values(found, f"{path}: ", Kept))
    for name, value in values.items():
        if (theirs := getattr(kept, name)) != value:
            raise UserError(f"{name}={value}, but {path} has {theirs}: leave it out, or begin another run")
    if kept.reward != values.get("reward"):  # the folder may be somebody else's
        raise UserError(f"{path}: to run the code of its reward, give --reward={kept.reward}")
    return kept


def check(options: Options, own: Kept) -> None:
    """Raise UserError for options that do not fit together."""
    if own.start == "scratch":
        raise UserError("rewards are for a model that answers: name it, as in --init_from=out-chat")
    rows = options.gradient_accumulation_steps * options.batch_size
    if rows % own.group:
        raise UserError(
            f"--group={own.group} does not divide the {rows} answers of a step: change --batch_size"
        )
    if jax.sharding.get_mesh().size > 1:
        raise UserError("rewards are learned from on one device: give --mesh=data:1")
    named_tasks(own.tasks)
