"""Serve a trained model: OpenAI's API at /v1, and a page in the browser at /.

    python serve.py --out_dir=out-quickstart            every option: python serve.py --help
    curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "def ", "max_tokens": 64}'

See docs/serving.md.
"""

import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import ipaddress
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import jax
from jax.sharding import Mesh
from pydantic import Field

from config.command_line import Count, Name, UserError, command, given
from data.tokenizer import Tokenizer, end_of_text
from generation.engine import Engine
from hub.chat import read_chat_template
from hub.weights import open_pretrained
from model import GPTConfig
from parallel.mesh import check_fit, make_mesh
from runs.checkpoint import Checkpoints
from runs.hardware import choose_device, keep_compiled_programs
from runs.load import load_pretrained, load_run, tokenizer_of
from runs.sizes import check_cache
from tools.serving.chat import Chat
from tools.serving.run import Run
from tools.serving.served import Served
from tools.serving.worker import Worker

Port = Annotated[int, Field(ge=0, lt=2**16)]
ApiKey = Annotated[str, Field(pattern="^[!-~]{8,}$")]  # a header of HTTP takes it

FINISH = 30  # seconds that running requests are given after SIGTERM
LOOK = 1.0  # seconds between looks for a new checkpoint


@dataclass(frozen=True)
class ServeOptions:
    """The options of serve.py. The comment after a field is its text in `--help`."""

    program: ClassVar[str] = "serve.py"
    purpose: ClassVar[str] = "Serve a trained model: OpenAI's API at /v1, and a page in the browser at /."

    init_from: Name = "resume"  # the run's latest checkpoint, or gpt2[-medium|-large|-xl], a folder, a hub id
    out_dir: Name = "out"  # folder of the run
    follow: bool = False  # serve each new checkpoint of a run that is still training
    host: Name = "127.0.0.1"  # address to listen at; one that others can reach needs an api_key
    port: Port = 8000  # port to listen at; 0: any that is free
    api_key: ApiKey | None = None  # what clients have to send; None: nothing
    allowed_hosts: str = ""  # more names, with commas, by which clients may call it; *: any
    slots: Count = 16  # requests computed together
    max_waiting: Count = 64  # requests that wait for a slot; others are refused (429)
    max_tokens: Count = 4096  # new tokens that one request may ask for
    max_prompt: Count = 65536  # tokens of a prompt
    max_body: Count = 2**20  # bytes of a request
    block_size: Count = 2048  # with --init_from: the longest context, if the weights allow more
    overflow: Literal["window", "error"] = "window"  # past block_size: read the last tokens alone, or refuse
    mesh: Name = "data:1"  # devices per axis of fsdp and tensor, as in tensor:2
    device: Literal["auto", "cpu", "cuda", "tpu"] = "auto"  # auto: JAX's choice; gpu and cuda:0 mean cuda
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # matmuls; auto: bfloat16 where it is faster
    compilation_cache: bool = True  # keep compiled programs in ~/.cache/nanojaxgpt for the next start


def main(argv: list[str]) -> None:
    options = ServeOptions(**given(argv, ServeOptions))
    check_reachable(options)
    if options.follow and options.init_from != "resume":
        raise UserError(f"--follow=True: init_from={options.init_from} is none of your runs: use --out_dir")
    choose_device(options.device)
    if options.compilation_cache:
        keep_compiled_programs()
    with listen(options) as listener, jax.set_mesh(make_mesh(options.mesh)):
        served = load_served(options)
        served.worker.start()
        listener.listen(2048)
        host, port = listener.getsockname()[:2]
        print(f"serving {served.name} at http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        print(f"compiling for {options.slots} slots: /health says how far", flush=True)
        if options.follow:
            mesh = jax.sharding.get_mesh()
            threading.Thread(target=follow, args=(served, options, mesh), daemon=True).start()
        # Uvicorn finishes what runs, restores this, and raises the signal again.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        run_http(served, listener)


def check_reachable(options: ServeOptions) -> None:
    """Raise UserError for a server that others could reach without a key."""
    try:
        loopback = options.host == "localhost" or ipaddress.ip_address(options.host).is_loopback
    except ValueError:  # a name
        loopback = False
    if not loopback and options.api_key is None:
        raise UserError(f"--host={options.host} lets other machines ask: give an --api_key, for them to send")


def listen(options: ServeOptions) -> socket.socket:
    """Open the port, before anything is loaded. Raises UserError."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        where = f"--host={options.host} --port={options.port}"
        raise UserError(f"{where}: {error.strerror}: choose another") from None
    return listener


def load_served(options: ServeOptions) -> Served:
    """Load the model and its tokenizer. Raises UserError."""
    run = options.init_from == "resume"
    if run:
        model, description, iteration = load_run(options.out_dir, dtype=options.dtype)
        version = f"iter-{iteration}"
    else:
        model, description = load_pretrained(options.init_from, options.dtype, options.block_size)
        version = "pretrained"
    tokenizer = tokenizer_of(description, options.init_from, options.out_dir)
    check_mesh(options.mesh, model.config)
    check_cache(model.config, options.slots, f"slots={options.slots}")
    vocab_size = min(tokenizer.vocab_size, model.config.vocab_size)  # either may have more than the other
    make_engine = partial(Engine, slots=options.slots, vocab_size=vocab_size)
    on_devices = partial(jax.set_mesh, jax.sharding.get_mesh())  # for the engine's thread
    return Served(
        Path(options.out_dir if run else options.init_from).resolve().name,
        tokenizer,
        vocab_size,
        end_of_text(description),
        Chat() if run else load_chat(options.init_from, tokenizer),
        Worker(model, version, make_engine, on_devices, options.max_waiting),
        Run(options.out_dir, options.dtype) if run else None,
        options.api_key,
        frozenset(name.strip() for name in [*options.allowed_hosts.split(","), options.host] if name.strip()),
        options.max_body,
        options.max_prompt,
        options.max_tokens,
        options.overflow,
    )


def check_mesh(text: str, config: GPTConfig) -> None:
    """Raise UserError for a mesh that does not split the weights."""
    mesh = jax.sharding.get_mesh()
    if mesh.shape["data"] * mesh.shape["stage"] > 1:
        raise UserError(f"mesh={text}: a server splits the weights alone: use tensor or fsdp, as in tensor:2")
    check_fit(mesh, config, B=mesh.size)


def load_chat(init_from: str, tokenizer: Tokenizer) -> Chat:
    """Load the chat template of a tokenizer from the hub or a folder. Raises UserError."""
    folder = open_pretrained(init_from).folder
    template, tokens = read_chat_template(folder)
    end = tokenizer.encode(tokens.get("eos_token", ""))
    try:
        return Chat(template, tokens, ends=(int(end[0]),) if len(end) == 1 else ())
    except UserError as error:
        where = "chat_template.jinja, or in tokenizer_config.json"
        raise UserError(f"{folder}: its chat template ({where}): {error}: correct or delete it") from None


def follow(served: Served, options: ServeOptions, mesh: Mesh) -> None:
    """Serve each new checkpoint of the run. A thread runs this."""
    checkpoints, seen = Checkpoints(options.out_dir), served.version
    while True:
        time.sleep(LOOK)
        checkpoints.look_again()
        if f"iter-{checkpoints.latest()}" == seen or checkpoints.latest() is None:
            continue
        try:
            with jax.set_mesh(mesh):
                model, _, iteration = load_run(options.out_dir, dtype=options.dtype)
        except UserError as error:  # it may be complete a moment later
            print(f"note: {error}", file=sys.stderr, flush=True)
            continue
        if model.config != served.model.config:
            print("note: the run has another shape now, and is followed no more", file=sys.stderr, flush=True)
            return
        seen = f"iter-{iteration}"
        served.worker.replace(model, seen)
        print(f"serving iter {iteration}", flush=True)


def run_http(served: Served, listener: socket.socket) -> None:
    """Answer until a signal comes; then refuse new requests, and finish those that run. Raises UserError."""
    import uvicorn  # here, while the engine compiles: FastAPI takes long to import

    from tools.serving.app import make_app
    from tools.serving.connections import IDLE, Connection

    async def look_after_engine() -> None:
        server.should_exit |= served.worker.error is not None

    settings = uvicorn.Config(
        make_app(served),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=FINISH,
        timeout_keep_alive=IDLE,
        http=Connection,
        ws="none",
        callback_notify=look_after_engine,
        timeout_notify=1,
    )
    server = uvicorn.Server(settings)
    try:
        server.run([listener])
    finally:
        served.worker.stop()
    served.worker.check()


if __name__ == "__main__":
    command(main)
