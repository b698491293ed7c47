"""The run that is served, as the page looks at it: its checkpoints, and its records while it trains.

    run = Run("out-quickstart")
    run.checkpoints()               [{"name": "iter-250", "iteration": 250, "val_loss": 1.9}, ...]
    run.load("iter-250")            the model, of which the last KEPT stay in memory
    run.records(offset, file)       what metrics.jsonl has got since then

A client names a checkpoint by what `checkpoints` lists; no path ever comes from it.
"""

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

from config.command_line import UserError
from config.files import open_file
from config.options import RESUMING
from model import GPT
from runs.checkpoint import Checkpoints
from runs.load import is_run, load_pretrained, load_run
from runs.manifest import Manifest
from runs.metrics import parse_record

KEPT = 2  # models in memory, beside the one that is served
RECORDS = 2**20  # bytes of metrics.jsonl that are read at once, at most
START = "start"  # names the weights that the run started from, if those were not random


class Run:
    """The run in a folder. One thread at a time may call `checkpoints` and `load`."""

    def __init__(self, out_dir: str, dtype: str = "auto"):
        self.out_dir, self.dtype = out_dir, dtype
        self.start: str | None = None  # the run, folder or hub id that it started from, once that is known
        self.kept: OrderedDict[str, GPT] = OrderedDict()  # the last used last

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the name, iteration and validation loss of every checkpoint, the oldest first.

        Before them come, without an iteration, the weights that a fine-tuned run started from.
        """
        checkpoints, found = Checkpoints(self.out_dir), []
        for iteration in checkpoints.iterations():
            try:
                manifest = checkpoints.manifest(iteration)
            except (UserError, OSError):  # damaged, or a run in training has just deleted it
                continue
            metrics = checkpoints.manager.metrics(iteration) or {}
            found.append(described(f"iter-{iteration}", iteration, metrics.get("val_loss")))
            if self.start is None:
                self.start, self.block_size = started_from(manifest), manifest.options.block_size
        return [described(START, None, None), *found] if self.start else found

    def load(self, name: str) -> GPT:
        """Return the model of a checkpoint that `checkpoints` lists. Raises KeyError for any other name."""
        if name not in self.kept:
            if name not in [checkpoint["name"] for checkpoint in self.checkpoints()]:
                raise KeyError(name)
            while len(self.kept) >= KEPT:  # first, so that there is room
                self.kept.popitem(last=False)
            self.kept[name] = self._load(name)
        self.kept.move_to_end(name)
        return self.kept[name]

    def _load(self, name: str) -> GPT:
        if name != START:
            return load_run(self.out_dir, int(name.removeprefix("iter-")), self.dtype)[0]
        assert self.start is not None, "checkpoints() has found it"
        if is_run(self.start):
            return load_run(self.start, dtype=self.dtype)[0]
        return load_pretrained(self.start, self.dtype, self.block_size)[0]

    def records(self, offset: int, file: str) -> dict[str, Any]:
        """Return the records of metrics.jsonl behind `offset`, if it is still the same `file`; else all.

        `offset` and `file` of the answer are for the next call. A run that is resumed writes another file,
        without the steps that it does again. A call reads RECORDS bytes at most; `more` says that there are
        others already.
        """
        try:
            with open_file(Path(self.out_dir) / "metrics.jsonl") as opened:
                stat = os.fstat(opened.fileno())
                name = f"{stat.st_ino:x}"
                fresh = name != file or offset > stat.st_size
                opened.seek(0 if fresh else offset)
                data = opened.read(RECORDS)
        except OSError:
            return {"records": [], "offset": 0, "file": "", "fresh": True, "more": False}
        whole = data[: data.rfind(b"\n") + 1]  # a line that is being written counts next time
        records = [record for line in whole.splitlines() if (record := parse_record(line))]
        offset = (0 if fresh else offset) + len(whole)
        more = len(data) == RECORDS and bool(whole)
        return {"records": records, "offset": offset, "file": name, "fresh": fresh, "more": more}


def described(name: str, iteration: int | None, val_loss: float | None) -> dict[str, Any]:
    return {"name": name, "iteration": iteration, "val_loss": val_loss}


def started_from(manifest: Manifest) -> str | None:
    """Return the run, folder or hub id whose weights a run started from; None for random ones."""
    if manifest.base is not None:
        return manifest.base["init_from"]
    start = manifest.options.init_from
    return None if start in ("scratch", *RESUMING) else start
