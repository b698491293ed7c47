"""Serve a trained model: OpenAI's API at /v1, and a page in the browser at /.

python serve.py --out_dir=out-quickstart            every option: python serve.py --help
curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "def ", "max_tokens": 64}'
"""

import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import jax
from pydantic import Field

from config.command_line import Count, Name, UserError, command, given, matching
from config.options import ModelOptions
from data.tokenizer import Tokenizer, end_of_text
from generation.engine import Engine
from hub.chat import read_chat_template
from hub.weights import open_pretrained
from parallel.mesh import check_fit, make_mesh
from runs.checkpoint import Checkpoints
from runs.hardware import choose_device, keep_compiled_programs
from runs.load import load_pretrained, load_run, tokenizer_of
from runs.manifest import latest_manifest
from tools.serving.chat import Chat
from tools.serving.served import Run, Served
from tools.serving.worker import Worker

Port = Annotated[int, Field(ge=0, lt=2**16)]
ApiKey = Annotated[str, matching(r"[!-~]{8,}", "8 characters or more of ASCII, no spaces")]

LOOPBACK = ["localhost", "127.0.0.1"]
LOOK = 1.0  # seconds between looks for a new checkpoint


@dataclass(frozen=True)
class ServeOptions(ModelOptions):
    """The options of serve.py. The comment after a field is its text in `--help`."""

    program: ClassVar[str] = "serve.py"
    purpose: ClassVar[str] = "Serve a trained model: OpenAI's API at /v1, and a page in the browser at /."

    beside: str = ""  # folder of another run of the same vocabulary, for the page to compare
    follow: bool = False  # serve each new checkpoint of a run that is still training
    host: Name = "127.0.0.1"  # address to listen at; one that others can reach needs an api_key
    port: Port = 8000  # port to listen at; 0: any that is free
    api_key: ApiKey | None = None  # what clients have to send; None: nothing
    allowed_hosts: str = ""  # without an api_key: more names, with commas, that it is called by; *: any
    slots: Count = 16  # requests computed together
    max_waiting: Count = 64  # requests that wait for a slot; others are refused (429)
    max_tokens: Count = 4096  # new tokens that one request may ask for
    block_size: Count = 2048  # with --init_from: the longest context, if the weights allow more
    mesh: Name = "data:1"  # devices per axis of fsdp and tensor, as in tensor:2


def main(argv: list[str]) -> None:
    options = ServeOptions(**given(argv, ServeOptions))
    if options.follow and options.init_from != "resume":
        raise UserError(f"--follow=True: init_from={options.init_from} is none of your runs: use --out_dir")
    if options.beside and options.init_from != "resume":
        raise UserError(
            f"--beside={options.beside}: it is compared with a run: give --out_dir, not --init_from"
        )
    choose_device(options.device)
    keep_compiled_programs()
    mesh = make_mesh(options.mesh)
    with listen(options) as listener, jax.set_mesh(mesh):
        served = load_served(options)
        served.worker.thread.start()
        print("serving {} at http://{}:{}".format(served.name, *listener.getsockname()), flush=True)
        if options.follow:
            threading.Thread(target=follow, args=(served, options, mesh), daemon=True).start()
        # Uvicorn finishes what runs, restores this, and raises the signal again.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        from tools.serving.app import make_server  # meanwhile the engine compiles

        try:
            make_server(served).run([listener])
        finally:
            served.worker.stop()
        if served.worker.error:
            raise served.worker.error


def listen(options: ServeOptions) -> socket.socket:
    """Open the port, before anything is loaded. Raises UserError, also where others need no key."""
    if options.host not in LOOPBACK and options.api_key is None:
        raise UserError(f"--host={options.host} lets other machines ask: give an --api_key, for them to send")
    try:
        return socket.create_server((options.host, options.port))
    except OSError as error:
        raise UserError(f"--host={options.host} --port={options.port}: {error.strerror}") from None


def load_served(options: ServeOptions) -> Served:
    """Load the model and its tokenizer. Raises UserError."""
    of_a_run = options.init_from == "resume"
    if of_a_run:
        model, manifest, iteration = load_run(options.out_dir, dtype=options.dtype)
        description = manifest.tokenizer
    else:
        model, description = load_pretrained(options.init_from, options.dtype, options.block_size)
    version = f"iter-{iteration}" if of_a_run else "pretrained"
    tokenizer = tokenizer_of(description, options.init_from, options.out_dir)
    mesh = jax.sharding.get_mesh()
    if mesh.shape["data"] * mesh.shape["stage"] > 1:
        raise UserError(f"mesh={options.mesh}: a server splits the weights alone: use tensor or fsdp")
    check_fit(mesh, model.config, B=mesh.size)
    if options.beside and latest_manifest(options.beside).tokenizer != description:
        raise UserError(f"--beside={options.beside}: has another vocabulary than --out_dir={options.out_dir}")
    others = [Run(options.beside, options.dtype, beside=True)] if options.beside else []
    vocab_size = min(tokenizer.vocab_size, model.config.vocab_size)  # either may have more than the other
    make_engine = partial(Engine, slots=options.slots, vocab_size=vocab_size)
    return Served(
        Path(options.out_dir if of_a_run else options.init_from).resolve().name,
        tokenizer,
        end_of_text(description),
        Chat() if of_a_run else load_chat(options.init_from, tokenizer),
        Worker(model, version, make_engine, partial(jax.set_mesh, mesh), options.max_waiting),
        [Run(options.out_dir, options.dtype), *others] if of_a_run else [],
        options.api_key,
        # Another site's name may lead to 127.0.0.1 (DNS rebinding), but its page has no key.
        ["*"] if options.api_key else LOOPBACK + options.allowed_hosts.replace(",", " ").split(),
        options.max_tokens,
    )


def load_chat(init_from: str, tokenizer: Tokenizer) -> Chat:
    """Load the chat template of a tokenizer from the hub or a folder. Raises UserError."""
    template, tokens = read_chat_template(open_pretrained(init_from).folder)
    end = tokenizer.encode(tokens.get("eos_token", "")).tolist()
    return Chat(template, tokens, ends=tuple(end) if len(end) == 1 else ())


def follow(served: Served, options: ServeOptions, mesh: jax.sharding.Mesh) -> None:
    """Serve each new checkpoint of the run. A thread runs this."""
    checkpoints, seen = Checkpoints(options.out_dir), served.worker.version
    while True:
        time.sleep(LOOK)
        try:
            checkpoints.manager.reload()
            if checkpoints.latest() is None or f"iter-{checkpoints.latest()}" == seen:
                continue
            with jax.set_mesh(mesh):
                model, _, iteration = load_run(options.out_dir, dtype=options.dtype)
            if model.config != served.model.config:
                raise UserError("the run has another shape now: start serve.py anew to follow it")
        except (UserError, OSError) as error:  # training deletes one, or has not completed it
            print(f"note: {error}", file=sys.stderr, flush=True)
            continue
        seen = f"iter-{iteration}"
        served.worker.replace(model, seen)
        print(f"serving iter {iteration}", flush=True)


if __name__ == "__main__":
    command(main)
