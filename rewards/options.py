"""The options of learning from rewards, which a run keeps in rewards.json."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
from pydantic import Field

from common.command_line import Count, Name, NonNegative, check_values
from common.errors import UserError
from common.files import read_json, refusing, write_whole
from config.options import RESUMING, Options
from data.tasks import named_tasks
from model import GPT
from runs.load import changed, fingerprint, lasting, load_weights
from runs.start import Run
from training.lora import without_adapters


@dataclass(frozen=True)
class RewardOptions:
    tasks: Name = "all"
    reward: Name | None = None
    group: Annotated[Count, Field(ge=2)] = 8
    max_new_tokens: Count = 32
    kl: NonNegative = 0.0
    tested: Count = 50


@dataclass(frozen=True)
class Kept(RewardOptions):
    """Holds the options that rewards.json keeps."""

    start: Name = "scratch"  # the weights that learning began with
    fingerprint: str = ""  # of these; older runs have none


def kept_options(options: Options, values: dict[str, Any]) -> Kept:
    """Return the options of rewards; a resumed run keeps those that it began with. Raises UserError."""
    path = Path(options.out_dir, "rewards.json")
    values = values | {"reward": placed(values["reward"])} if "reward" in values else values
    if options.init_from not in RESUMING:
        return Kept(**values, start=lasting(options.init_from))
    with refusing(f"{path}: cannot be read", "restore it, or begin another run", ValueError, TypeError):
        kept = Kept(**check_values(dict(read_json(path)), f"{path}: ", Kept))
    kept = replace(kept, reward=placed(kept.reward))
    for name, value in values.items():
        if (theirs := getattr(kept, name)) != value:
            raise UserError(f"{name}={value}, but {path} has {theirs}: leave it out, or begin another run")
    if kept.reward != values.get("reward"):  # the folder may be somebody else's
        raise UserError(f"{path}: to run the code of its reward, give --reward={kept.reward}")
    return kept


def placed(reward: str | None) -> str | None:
    """Return a name of a function that means the same from any folder."""
    path, colon, name = (reward or "").rpartition(":")
    return os.path.abspath(path) + colon + name if colon else reward


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


def load_start(run: Run, own: Kept) -> GPT:
    """Load the weights that learning began with, and write rewards.json. Raises UserError for others."""
    start = load_weights(own.start, without_adapters(run.shapes.model))
    if own.fingerprint not in ("", found := fingerprint(start)):
        raise changed(f"{run.options.out_dir}: it began with", own.start)
    own = replace(own, fingerprint=found)
    write_whole(Path(run.options.out_dir, "rewards.json"), json.dumps(asdict(own), indent=1) + "\n")
    return start
