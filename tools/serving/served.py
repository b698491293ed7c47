"""What is served: the model, its limits, and the run that it comes from, or follows."""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jax

from common.errors import UserError
from data.conversations import Renderer
from data.tokenizer import Tokenizer, end_tokens, same_tokens
from model import GPT
from parallel.mesh import check_fit
from runs.checkpoint import Checkpoints
from runs.load import load_pretrained, load_run, tokenizer_of
from tools.serving.run_folder import RunFolder
from tools.serving.server import ServeOptions
from tools.serving.worker import Worker
from training.compute import for_inference

LOOK = 1.0  # seconds between looks for a new checkpoint


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
    loaded: int = field(default_factory=lambda: int(time.time()))  # when, in seconds since 1970
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # of the page's view that is computed

    @property
    def model(self) -> GPT:
        return self.worker.model

    @property
    def vocab_size(self) -> int:
        return self.worker.engine.vocab_size


def load_served(options: ServeOptions, say: Callable[[str], None] = print) -> Served:
    """Load the model and its tokenizer, and `say` what goes on. Raises UserError."""
    if options.follow:
        wait_for_checkpoint(options.out_dir, say)
    say("loading weights")
    if options.init_from == "resume":
        model, manifest, iteration = load_run(options.out_dir, options.checkpoint)
        source, version, description = options.out_dir, f"iter-{iteration}", manifest.tokenizer
        run = RunFolder(options.out_dir, options.dtype)
    else:
        model, description = load_pretrained(options.init_from, options.block_size)
        source, version, run = options.init_from, "pretrained", None
    model = for_inference(model, options.dtype)
    tokenizer = tokenizer_of(description, options.init_from, options.out_dir)
    mesh = jax.sharding.get_mesh()
    if mesh.shape["data"] * mesh.shape["stage"] > 1:
        raise UserError(f"mesh={options.mesh}: a server splits the weights alone: use tensor or fsdp")
    check_fit(mesh, model.config, B=mesh.size)
    try:
        chat = Renderer(tokenizer, pretrained=run is None)
    except UserError as error:
        chat = str(error)
        if tokenizer.description.get("uses", {}).get("chat_template"):
            print(f"note: {chat}: chats are refused", file=sys.stderr)
    return Served(
        Path(source).resolve().name,
        tokenizer,
        end_tokens(description),
        chat,
        Worker(model, version, tokenizer.vocab_size, options.slots, options.max_waiting),
        run,
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
    checkpoints, seen, tried = Checkpoints(options.out_dir), served.worker.version, {}
    say_once = cache(lambda note: print(note, file=sys.stderr, flush=True))
    while served.worker.works:
        time.sleep(LOOK)
        try:
            latest = newest(checkpoints)
            files = (checkpoints.folder / str(latest)).rglob("*")
            files = {path: path.stat().st_ctime_ns for path in files}
            if f"iter-{latest}" == seen or not files or files == tried:
                continue
            tried = files
            model, manifest, iteration = load_run(options.out_dir)
            same = same_tokens(manifest.tokenizer, served.tokenizer.description)
            if model.config != served.model.config or not same:
                raise UserError(
                    "the run has another shape or tokenizer now: start serve.py anew to follow it"
                )
        except Exception as error:  # training deletes one, or has not completed it; or there is no room
            say_once(f"note: {error}")
            continue
        seen = f"iter-{iteration}"
        served.worker.replace(for_inference(model, options.dtype), seen)
        print(f"serving iter {iteration}", flush=True)
