"""What is served: the model, its limits, and the run that it comes from, or follows."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from common.errors import UserError
from config.options import RESUMING
from data.conversations import Renderer
from data.dataset import Dataset
from data.tokenizer import Tokenizer, end_tokens, same_tokens
from generation.decode import limit_vocabulary
from generation.engine import Engine
from model import GPT
from parallel.mesh import check_fit
from runs.checkpoint import Checkpoints, Manifest, latest_manifest
from runs.load import is_run, load_pretrained, load_run, tokenizer_of
from runs.metrics import parse_record
from tools.serving.server import ServeOptions
from tools.serving.worker import Worker
from training.compute import for_inference

KEPT = 2  # models in memory, beside the served one
LOOK = 1.0  # seconds between looks for a new checkpoint
START = "start"  # names the weights that a fine-tuned run started from


class RunFolder:
    """The run in a folder. One thread at a time may call `checkpoints` and `load`."""

    def __init__(self, out_dir: str, dtype: str = "auto"):
        self.out_dir, self.dtype = Path(out_dir), dtype
        self.load = lru_cache(KEPT)(self._load)

    def checkpoints(self) -> list[dict[str, Any]]:
        """Describe every checkpoint, the oldest first, and before them START."""
        checkpoints = Checkpoints(str(self.out_dir))
        found: list[dict[str, Any]] = []
        for iteration in checkpoints.iterations():
            try:
                manifest = checkpoints.manifest(iteration)
            except (UserError, OSError):  # damaged, or just deleted by training
                continue
            loss = checkpoints.loss(iteration) if manifest.score == "loss" else None
            if not found:
                self.start, self.block_size = started_from(manifest), manifest.options.block_size
                if self.start:
                    found.append({"name": START, "iteration": None, "val_loss": None})
            found.append({"name": f"iter-{iteration}", "iteration": iteration, "val_loss": loss})
        return found

    def example(self, most: int) -> Int[np.ndarray, " T"]:
        """Return the first tokens of its validation text. Raises UserError."""
        manifest = latest_manifest(str(self.out_dir))
        tokens = Dataset(manifest.options.dataset, manifest.vocab_size).tokens("val")
        return tokens.read([0], min(most, len(tokens)))[0].astype(np.int32)

    def _load(self, name: str) -> GPT:
        """Return the model of a checkpoint. Raises KeyError for a name that `checkpoints` does not list."""
        found = {checkpoint["name"]: checkpoint["iteration"] for checkpoint in self.checkpoints()}
        iteration = found[name]
        if iteration is not None:
            model, *_ = load_run(str(self.out_dir), iteration)
        elif is_run(start := str(self.start)):  # which checkpoints() has found
            model, *_ = load_run(start)
        else:
            model, _ = load_pretrained(start, self.block_size)
        return for_inference(model, self.dtype)

    def records(self, offset: int) -> dict[str, Any]:
        """Return the records after `offset`, and the new offset; all records, if the run has begun anew."""
        begin, data, path = 0, b"", self.out_dir / "metrics.jsonl"
        if path.is_file():  # not a pipe, whose reader would wait
            with suppress(OSError), path.open("rb") as opened:
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
    chat: Renderer | str  # or why there are none
    worker: Worker
    run: RunFolder | None  # that the model comes from
    api_key: str | None = field(repr=False)
    max_tokens: int  # new ones of a request
    views: int = 0  # of the page that are computed or wait
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # of the one that is computed

    @property
    def model(self) -> GPT:
        return self.worker.model

    @property
    def vocab_size(self) -> int:
        return self.worker.engine.vocab_size


def load_served(options: ServeOptions, say: Callable[[str], None] = print) -> Served:
    """Load the model and its tokenizer, and `say` what goes on. Raises UserError."""
    of_a_run = options.init_from == "resume"
    if options.follow:
        wait_for_checkpoint(options.out_dir, say)
    say("loading weights")
    if of_a_run:
        model, manifest, iteration = load_run(options.out_dir, options.checkpoint)
        description = manifest.tokenizer
    else:
        model, description = load_pretrained(options.init_from, options.block_size)
    model = for_inference(model, options.dtype)
    version = f"iter-{iteration}" if of_a_run else "pretrained"
    tokenizer = tokenizer_of(description, options.init_from, options.out_dir)
    mesh = jax.sharding.get_mesh()
    if mesh.shape["data"] * mesh.shape["stage"] > 1:
        raise UserError(f"mesh={options.mesh}: a server splits the weights alone: use tensor or fsdp")
    check_fit(mesh, model.config, B=mesh.size)

    def make_engine(model: GPT) -> Engine:
        return Engine(limit_vocabulary(model, tokenizer.vocab_size), options.slots)

    try:
        chat = Renderer(tokenizer, pretrained=not of_a_run)
    except UserError as error:
        chat = str(error)
        if tokenizer.description.get("uses", {}).get("chat_template"):
            print(f"note: {chat}: chats are refused", file=sys.stderr)
    return Served(
        Path(options.out_dir if of_a_run else options.init_from).resolve().name,
        tokenizer,
        end_tokens(description),
        chat,
        Worker(model, version, make_engine, partial(jax.set_mesh, mesh), options.max_waiting),
        RunFolder(options.out_dir, options.dtype) if of_a_run else None,
        options.api_key,
        options.max_tokens,
    )


def wait_for_checkpoint(out_dir: str, say: Callable[[str], None]) -> None:
    checkpoints = Checkpoints(out_dir)
    if checkpoints.latest() is None:
        say(f"waiting for the first checkpoint of {Path(out_dir).resolve().name}")
    while newest(checkpoints) is None:
        time.sleep(LOOK)


def newest(checkpoints: Checkpoints) -> int | None:
    """Look for the newest checkpoint. Raises UserError where the folder cannot be read."""
    with checkpoints.working():  # or Orbax would tell of a folder that is still empty at each look
        checkpoints.manager.reload()
    return checkpoints.latest()


def follow(served: Served, options: ServeOptions) -> None:
    """Serve each new checkpoint of the run, until the server stops; a bad one again if its files change."""
    checkpoints, seen, files, failed = Checkpoints(options.out_dir), served.worker.version, {}, {}
    say_once = cache(lambda note: print(note, file=sys.stderr, flush=True))
    while served.worker.works:
        time.sleep(LOOK)
        try:
            latest = newest(checkpoints)
            if latest is None or f"iter-{latest}" == seen:
                continue
            folder = checkpoints.folder / str(latest)
            files = {path: path.stat().st_ctime_ns for path in folder.rglob("*")}
            if files == failed:
                continue
            model, manifest, iteration = load_run(options.out_dir)
            same = same_tokens(manifest.tokenizer, served.tokenizer.description)
            if model.config != served.model.config or not same:
                raise UserError(
                    "the run has another shape or tokenizer now: start serve.py anew to follow it"
                )
        except Exception as error:  # training deletes one, or has not completed it; or there is no room
            failed = files
            say_once(f"note: {error}")
            continue
        seen = f"iter-{iteration}"
        served.worker.replace(for_inference(model, options.dtype), seen)
        print(f"serving iter {iteration}", flush=True)
