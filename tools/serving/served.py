"""What is served: the model, its limits, and the run that the page looks into."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from config.command_line import UserError
from config.options import RESUMING
from data.dataset import Dataset
from data.tokenizer import Tokenizer
from model import GPT
from runs.checkpoint import Checkpoints, Manifest, latest_manifest
from runs.load import is_run, load_pretrained, load_run
from runs.metrics import parse_record
from tools.serving.chat import Chat
from tools.serving.worker import Worker

KEPT = 2  # models in memory, beside the served one
START = "start"  # names the weights that a fine-tuned run started from


class Run:
    """The run in a folder. One thread at a time may call `checkpoints` and `load`."""

    def __init__(self, out_dir: str, dtype: str = "auto", beside: bool = False):
        """`beside` another one that is served: the names of its checkpoints begin with the run's."""
        self.out_dir, self.dtype = out_dir, dtype
        self.name = Path(out_dir).resolve().name + (" (beside)" if beside else "")
        self.prefix = f"{self.name}/" if beside else ""
        self.load = lru_cache(KEPT)(self._load)

    def checkpoints(self) -> list[dict[str, Any]]:
        """Describe every checkpoint, the oldest first, and before them START."""
        checkpoints = Checkpoints(self.out_dir)
        found: list[dict[str, Any]] = []
        for iteration in checkpoints.iterations():
            try:
                manifest = checkpoints.manifest(iteration)
            except (UserError, OSError):  # damaged, or just deleted by training
                continue
            loss = checkpoints.loss(iteration)
            if not found:
                self.start, self.block_size = started_from(manifest), manifest.options.block_size
                if self.start:
                    found.append({"name": START, "iteration": None, "val_loss": None})
            found.append({"name": f"iter-{iteration}", "iteration": iteration, "val_loss": loss})
        return [x | {"name": self.prefix + x["name"], "run": self.name} for x in found]

    def example(self, most: int) -> Int[np.ndarray, " T"]:
        """Return the first tokens of its validation text. Raises UserError."""
        manifest = latest_manifest(self.out_dir)
        tokens = Dataset(manifest.options.dataset, manifest.vocab_size).tokens("val")
        return tokens.read([0], min(most, len(tokens)))[0].astype(np.int32)

    def _load(self, name: str) -> GPT:
        """Return the model of a checkpoint. Raises KeyError for a name that `checkpoints` does not list."""
        found = {checkpoint["name"]: checkpoint["iteration"] for checkpoint in self.checkpoints()}
        iteration = found[name]
        if iteration is not None:
            return load_run(self.out_dir, iteration, self.dtype)[0]
        assert self.start is not None, "checkpoints() has found it"
        if is_run(self.start):
            return load_run(self.start, dtype=self.dtype)[0]
        return load_pretrained(self.start, self.dtype, self.block_size)[0]

    def records(self, offset: int) -> dict[str, Any]:
        """Return the records after `offset`, and the new offset; all records, if the run has begun anew."""
        begin, data = 0, b""
        with suppress(OSError), open(Path(self.out_dir) / "metrics.jsonl", "rb") as opened:
            begin = offset if offset <= os.fstat(opened.fileno()).st_size else 0
            opened.seek(begin)
            data = opened.read()
        lines = data[: data.rfind(b"\n") + 1]  # not a line that is being written
        records = [record for line in lines.splitlines() if (record := parse_record(line))]
        return {"records": records, "offset": begin + len(lines), "fresh": begin == 0}


def started_from(manifest: Manifest) -> str | None:
    """Return the run, folder or hub id that a run started from; None for random weights."""
    if manifest.base is not None:
        return manifest.base["init_from"]
    start = manifest.options.init_from
    return None if start in ("scratch", *RESUMING) else start


@dataclass
class Served:
    """What the routes find in `app.state.served`."""

    name: str  # of the model, in the API
    tokenizer: Tokenizer
    ends: list[int]  # tokens that end what it writes
    chat: Chat
    worker: Worker
    runs: list[Run]  # the model's, if it comes from one, and others of its vocabulary
    api_key: str | None = field(repr=False)
    max_tokens: int  # new ones of a request

    @property
    def model(self) -> GPT:
        return self.worker.model

    def load(self, name: str) -> GPT:
        """Load a checkpoint. Raises KeyError for a name that no run has, and UserError."""
        for run in reversed(self.runs):  # the first has an empty prefix
            if name.startswith(run.prefix):
                return run.load(name)
        raise KeyError(name)

    @property
    def vocab_size(self) -> int:
        return self.worker.engine.vocab_size
