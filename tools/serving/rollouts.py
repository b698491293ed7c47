"""How a run learned from rewards: rollouts.jsonl, with a line for each question of an evaluation."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from common.command_line import NonNegativeInt
from common.files import refusing

NAME = "rollouts.jsonl"
Ids = list[NonNegativeInt]


@dataclass(frozen=True, config={"strict": True})
class Rollout:
    tokens: Ids
    text: str
    reward: FiniteFloat
    advantage: FiniteFloat
    logprobs: list[FiniteFloat]  # of its tokens
    before: list[FiniteFloat]  # the same under the weights that learning began with

    def __post_init__(self):
        if not len(self.tokens) == len(self.logprobs) == len(self.before):
            raise ValueError("an answer needs as many logprobs, and numbers before, as tokens")


@dataclass(frozen=True, config={"strict": True})
class Group:
    """Holds the answers to one question at one evaluation."""

    iter: NonNegativeInt
    task: str
    question: str
    prompt: Ids
    answers: Annotated[list[Rollout], Field(min_length=1)]


GROUP = TypeAdapter(Group)


def read_rollouts(folder: Path) -> list[dict[str, Any]]:
    """Return the groups, if there are any. Raises UserError for a line that is none, or a file unread."""
    path, data = folder / NAME, b""
    if path.is_file():  # not a folder, nor a pipe, whose reader would wait
        with refusing(f"{NAME}: cannot be read", "see its permissions", OSError):
            data = path.read_bytes()
    lines, groups = data[: data.rfind(b"\n") + 1].splitlines(), []  # not a line that is being written
    for n, line in enumerate(lines, 1):
        with refusing(f"{NAME}: line {n} is no group of answers", "mend or delete it", ValidationError):
            groups.append(asdict(GROUP.validate_json(line)))
    return groups
