"""What the page is told of a run: its checkpoints, its records, and the answers that it learned from."""

import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int
from pydantic import AfterValidator, Field, FiniteFloat, ValidationError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from common.command_line import NonNegativeInt, value_reader
from common.errors import UserError
from common.files import refusing
from config.options import RESUMING
from data.conversations import Renderer
from data.dataset import Dataset, TokenFile
from data.tokenizer import same_tokens
from model import GPT
from runs.checkpoint import Checkpoints, Manifest, latest_manifest
from runs.load import is_run, load_pretrained, load_run
from runs.metrics import parse_record
from training.compute import for_inference

KEPT = 2  # models in memory, beside the served one
START = "start"  # names the weights that a fine-tuned run started from; START-2, what that run started from
MARK = "\u2603"  # stands for a question; no template writes it
QUESTIONS = 6  # that the page offers at most
ROLLOUTS = "rollouts.jsonl"  # has a line for each question of an evaluation
Ids = list[NonNegativeInt]


class Rollout(TypedDict):
    tokens: Ids
    text: str
    reward: FiniteFloat
    advantage: FiniteFloat
    logprobs: list[FiniteFloat]  # of its tokens
    before: list[FiniteFloat]  # the same under the weights that learning began with


def of_tokens(found: Rollout) -> Rollout:
    if not len(found["tokens"]) == len(found["logprobs"]) == len(found["before"]):
        raise ValueError("an answer needs as many logprobs, and numbers before, as tokens")
    return found


class Group(TypedDict):
    """Holds the answers to one question at one evaluation."""

    iter: NonNegativeInt
    task: str
    question: str
    prompt: Ids
    answers: Annotated[list[Annotated[Rollout, AfterValidator(of_tokens)]], Field(min_length=1)]


class RunFolder:
    """The run in a folder. One thread at a time may call `checkpoints` and `load`."""

    def __init__(self, out_dir: str, dtype: str = "auto"):
        self.out_dir, self.dtype = Path(out_dir), dtype
        self.load = lru_cache(KEPT)(self._load)

    def checkpoints(self) -> list[dict[str, Any]]:
        """Describe every checkpoint, the oldest first, and before them what the run started from."""
        checkpoints = Checkpoints(str(self.out_dir))
        found: list[dict[str, Any]] = []
        for iteration in checkpoints.iterations():
            try:
                manifest = checkpoints.manifest(iteration)
                loss = checkpoints.loss(iteration) if manifest.score == "loss" else None
            except (UserError, OSError):  # damaged, or just deleted by training
                continue
            if not found:
                self.starts, self.block_size = starts_of(manifest), manifest.options.block_size
                for name, start in self.starts.items():
                    known = {"iteration": None, "val_loss": None}
                    found.append({"name": name, "of": Path(start).name} | known)
            found.append({"name": f"iter-{iteration}", "iteration": iteration, "val_loss": loss})
        return found

    def _load(self, name: str) -> GPT:
        """Return the model of a checkpoint. Raises KeyError for a name that `checkpoints` does not list."""
        iteration = {found["name"]: found["iteration"] for found in self.checkpoints()}[name]
        if iteration is not None:
            model, *_ = load_run(str(self.out_dir), iteration)
        elif is_run(start := self.starts[name]):  # which checkpoints() has found
            model, *_ = load_run(start)
        else:
            model, _ = load_pretrained(start, self.block_size)
        return for_inference(model, self.dtype)

    def example(self, most: int) -> Int[np.ndarray, " T"]:
        """Return the first tokens of its validation text. Raises UserError."""
        tokens = self.validation()
        return tokens.read([0], min(most, len(tokens)))[0].astype(np.int32)

    def questions(self, chat: Renderer) -> list[str]:
        """Return short first questions of its validation text, by different first words. Raises UserError."""
        tokens = self.validation()
        prompt = chat.prompt([{"role": "user", "content": MARK}])  # without a system message
        around = chat.tokenizer.decode(prompt).split(MARK)
        if len(around) != 2:  # the vocabulary has no such character
            return []
        before, after = map(re.escape, around)
        text = chat.tokenizer.decode(tokens.read([0], min(8192, len(tokens)))[0])
        found = re.findall(f"{before}(\\S.{{0,59}}?){after}", text)
        return [*{question.split()[0].lower(): question for question in found}.values()][:QUESTIONS]

    def validation(self) -> TokenFile:
        """Return its validation text. Raises UserError, also where that was prepared anew since."""
        manifest = latest_manifest(str(self.out_dir))
        dataset = Dataset(name := manifest.options.dataset, manifest.vocab_size)
        manifest.check_text(name, dataset.meta.sha256)
        if not same_tokens(dataset.meta.tokenizer, manifest.tokenizer):
            raise UserError(f"dataset={name}: it has another tokenizer than the run {self.out_dir}")
        return dataset.tokens("val")

    def records(self, offset: int) -> dict[str, Any]:
        """Return the records after `offset`, and the new offset; all records, if the run has begun anew."""
        path, begin, lines = self.out_dir / "metrics.jsonl", 0, b""
        with suppress(OSError):  # it may be deleted meanwhile, or not be the server's to read
            begin = offset if path.is_file() and offset <= path.stat().st_size else 0
            lines = whole_lines(path, begin)
        records = [record for line in lines.splitlines() if (record := parse_record(line))]
        return {"records": records, "offset": begin + len(lines), "fresh": begin == 0}

    def rollouts(self) -> list[Group]:
        """Return the groups of answers. Raises UserError for a line that is none, or an unreadable file."""
        with refusing(f"{ROLLOUTS}: cannot be read", "see its permissions", OSError):
            lines = whole_lines(self.out_dir / ROLLOUTS).splitlines()
        groups = []
        for n, line in enumerate(lines, 1):
            with refusing(
                f"{ROLLOUTS}: line {n} is no group of answers", "mend or delete it", ValidationError
            ):
                groups.append(value_reader(Group).validate_json(line, strict=True))
        return groups


def starts_of(manifest: Manifest) -> dict[str, str]:
    """Return what a run started from, as START, and what that run did, as START-2: the oldest first."""
    found: list[str] = []
    with suppress(UserError):  # an earlier run may be gone
        while True:
            start = manifest.base["init_from"] if manifest.base else manifest.options.init_from
            if start in ("scratch", *RESUMING, *found):
                break
            found.append(start)
            if is_run(start):
                manifest = latest_manifest(start)
    named = {f"{START}-{n}" if n > 1 else START: start for n, start in enumerate(found, 1)}
    return dict(reversed(named.items()))


def whole_lines(path: Path, offset: int = 0) -> bytes:
    """Read a file's lines, without one that is still being written. One that is not there has none."""
    if not path.is_file():  # nor has a pipe, whose reader would wait
        return b""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    return data[: data.rfind(b"\n") + 1]
