"""Load what serve.py serves: a run or other weights, and a run's newer checkpoints once there are."""

import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import jax

from config.command_line import UserError
from data.tokenizer import end_tokens, same_tokens
from generation.engine import Engine
from parallel.mesh import check_fit, make_mesh
from runs.checkpoint import Checkpoints, latest_manifest
from runs.hardware import choose_device, keep_compiled_programs
from runs.load import load_pretrained, load_run, tokenizer_of
from tools.serving.app import make_app
from tools.serving.chat import Chat
from tools.serving.options import ServeOptions
from tools.serving.served import Run, Served
from tools.serving.server import Server
from tools.serving.worker import Worker

LOOK = 1.0  # seconds between looks for a new checkpoint


def serve(options: ServeOptions, server: Server) -> None:
    """Load the model, have the server answer with it, and look after both. Raises UserError."""
    choose_device(options.device)
    keep_compiled_programs()
    with jax.set_mesh(make_mesh(options.mesh)):
        served = load_served(options, server.say)
        served.worker.thread.start()
        server.app = make_app(served)
        server.give_up, server.stop_work = served.worker.give_up, served.worker.stop
        print(f"serving {served.name} at {server.address}", flush=True)
        if options.follow:
            follow(served, options)
    served.worker.thread.join()
    if served.worker.error:
        raise served.worker.error


def load_served(options: ServeOptions, say: Callable[[str], None] = print) -> Served:
    """Load the model and its tokenizer, and `say` what goes on. Raises UserError."""
    of_a_run = options.init_from == "resume"
    if options.follow:
        wait_for_checkpoint(options.out_dir, say)
    say("loading weights")
    if of_a_run:
        model, manifest, iteration = load_run(options.out_dir, options.checkpoint, options.dtype)
        description = manifest.tokenizer
    else:
        model, description = load_pretrained(options.init_from, options.dtype, options.block_size)
    version = f"iter-{iteration}" if of_a_run else "pretrained"
    tokenizer = tokenizer_of(description, options.init_from, options.out_dir)
    mesh = jax.sharding.get_mesh()
    if mesh.shape["data"] * mesh.shape["stage"] > 1:
        raise UserError(f"mesh={options.mesh}: a server splits the weights alone: use tensor or fsdp")
    check_fit(mesh, model.config, B=mesh.size)
    if options.beside and not same_tokens(latest_manifest(options.beside).tokenizer, description):
        raise UserError(f"--beside={options.beside}: has another vocabulary than --out_dir={options.out_dir}")
    others = [Run(options.beside, options.dtype, beside=True)] if options.beside else []
    vocab_size = min(tokenizer.vocab_size, model.config.vocab_size)  # either may have more than the other
    make_engine = partial(Engine, slots=options.slots, vocab_size=vocab_size)
    chat = Chat(tokenizer.description)
    if chat.broken:
        print(f"note: {chat.broken}: chats are refused", file=sys.stderr)
    return Served(
        Path(options.out_dir if of_a_run else options.init_from).resolve().name,
        tokenizer,
        end_tokens(description),
        chat,
        Worker(model, version, make_engine, partial(jax.set_mesh, mesh), options.max_waiting),
        [Run(options.out_dir, options.dtype), *others] if of_a_run else [],
        options.api_key,
        options.max_tokens,
    )


def wait_for_checkpoint(out_dir: str, say: Callable[[str], None]) -> None:
    checkpoints = Checkpoints(out_dir)
    if checkpoints.latest() is None:
        say(f"waiting for the first checkpoint of {Path(out_dir).resolve().name}")
    while checkpoints.latest() is None:
        time.sleep(LOOK)
        checkpoints.manager.reload()


def follow(served: Served, options: ServeOptions) -> None:
    """Serve each new checkpoint of the run, until the server stops; a bad one again if its files change."""
    checkpoints, seen, files, failed = Checkpoints(options.out_dir), served.worker.version, {}, {}
    say_once = cache(partial(print, file=sys.stderr, flush=True))
    while served.worker.works:
        time.sleep(LOOK)
        try:
            checkpoints.manager.reload()
            if checkpoints.latest() is None or f"iter-{checkpoints.latest()}" == seen:
                continue
            newest = checkpoints.folder / str(checkpoints.latest())
            files = {path: path.stat().st_ctime_ns for path in newest.rglob("*")}
            if files == failed:
                continue
            model, _, iteration = load_run(options.out_dir, dtype=options.dtype)
            if model.config != served.model.config:
                raise UserError("the run has another shape now: start serve.py anew to follow it")
        except (UserError, OSError) as error:  # training deletes one, or has not completed it
            failed = files
            say_once(f"note: {error}")
            continue
        seen = f"iter-{iteration}"
        served.worker.replace(model, seen)
        print(f"serving iter {iteration}", flush=True)
