"""Read runs in the working directory, or in the Volume at Modal."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import modal
from pydantic_core import from_json

from common.command_line import given
from common.errors import UserError
from common.files import GONE
from config.options import NOT_RESUMED, RESUMING, Options
from tools.cloud import VOLUME

MISSING = (*GONE, modal.exception.NotFoundError)


class Runs:
    """The runs in the Volume, or here."""

    def __init__(self, remote: bool):
        self.volume = modal.Volume.from_name(VOLUME, create_if_missing=True) if remote else None

    def names(self, folder: str = "", root: str = "runs") -> list[str]:
        try:
            if self.volume is None:
                return sorted(os.listdir(folder or "."))
            return sorted(Path(entry.path).name for entry in self.volume.listdir(f"/{root}/{folder}"))
        except MISSING:
            return []

    def read(self, path: str) -> bytes | None:
        try:
            if self.volume is None:
                return Path(path).read_bytes()
            return b"".join(self.volume.read_file(f"runs/{path}"))
        except MISSING:
            return None

    def options(self, run: str) -> Options | None:
        data = self.read(path := f"{run}/options.json")
        return None if data is None else Options.from_json(from_json(data), origin=path)

    def check(self, run: str) -> Options:
        """Return a run's options. Raises UserError."""
        if (options := self.options(run)) is None:
            raise UserError(f"--run-name={run}: there is no such run; `list` shows those that are there")
        return options

    def records(self, run: str) -> list[dict]:
        from runs.metrics import parse_record  # late: it imports JAX

        lines = (self.read(f"{run}/metrics.jsonl") or b"").splitlines()
        return [record for line in lines if (record := parse_record(line))]

    def summary(self, run: str) -> tuple[float, str]:
        """Return a run's best loss, and a line about it."""
        records = self.records(run)
        losses = [record["val/loss"] for record in records if "val/loss" in record]
        best = min(losses, default=math.inf)
        loss = f"val loss {losses[-1]:.4f}, best {best:.4f}" if losses else "no loss yet"
        return best, f"{run:32} iter {max((record['iter'] for record in records), default=0):,}, {loss}"

    def have_ended(self, run: str, words: list[str]) -> bool:
        """Tell whether a run has come to the end of train.py's `words`, which may not change it unasked."""
        asked, theirs = given(words, Options), self.options(run)
        saved = max((int(x) for x in self.names(f"{run}/checkpoints") if x.isdecimal()), default=0)
        if theirs is None or not saved:
            return False
        for name, ours in asked.items() if asked.get("init_from") not in RESUMING else []:
            if name not in NOT_RESUMED and ours != (old := getattr(theirs, name)):
                raise UserError(
                    f"{run} holds a run with {name}={old}, and this launch has {name}={ours}: "
                    "go on with --init_from=resume, which changes it, or choose another --run-name"
                )
        return not asked.get("eval_only") and saved >= asked.get("max_iters", theirs.max_iters)


def watch(runs: Runs, run: str) -> None:
    """Print a run's records as they come, until max_iters."""
    shown, last = 0, runs.check(run).max_iters
    while True:
        records = runs.records(run)
        for record in records[shown:]:
            print(", ".join(f"{name} {value:.6g}" for name, value in record.items()), flush=True)
        if records and records[-1]["iter"] >= last:
            return
        shown = len(records)  # fewer than before, if it was resumed and does steps again
        time.sleep(5)


def fetch(run: str, results: tuple[str, ...] = ()) -> None:
    """Copy a run of the Volume, or only its `results`, here. Raises UserError."""
    if not results:
        Runs(remote=True).check(run)
        if Path(run).exists():
            raise UserError(f"{run}/ is here already: move it away, and fetch again")
    for path in [Path(run, result) for result in results] or [Path(run)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        get = [sys.executable, "-m", "modal", "volume", "get", "--force", VOLUME, f"runs/{path.as_posix()}"]
        if status := subprocess.run([*get, path.parent]).returncode:
            raise UserError(f"{path}: modal volume get ended with status {status}: remove it, and try again")
        print(f"{path} is here now")
