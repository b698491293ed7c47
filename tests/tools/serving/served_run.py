"""Servers in this process, and clients."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import absl.logging
import httpx
import jax
import openai

from parallel.mesh import make_mesh
from serve import ServeOptions, listen
from tests.helpers import wait_until
from tools.serving.app import make_app, serve
from tools.serving.served import Served, load_served
from tools.serving.server import Server

# uvicorn's logging closes absl's handler, which Orbax installs, and absl closes that handler's stream. Within
# capsys it is pytest's own, if the process has no server yet. absl leaves `sys.__stderr__` open.
absl.logging.get_absl_handler().python_handler.setStream(sys.__stderr__)

# A run of conftest.py learns this, with what HTML is made of, so that a text may be markup.
TEXT = "the <b>quick</b> brown fox jumps over <img src=x onerror=alert(1)> the lazy dog.\n" * 30
SYMBOLS = "".join(sorted(set(TEXT)))
ITERATIONS = [5, 10, 15, 20]  # of its checkpoints
BLOCK_SIZE = 32


@contextmanager
def answering(options: ServeOptions) -> Iterator[Server]:
    """Answer in a thread, before there is a model."""
    with listen(options) as listener:
        server = Server(options, listener)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.should_exit = True
            server.stop_work()
            thread.join()


@contextmanager
def serving(compiled: bool = True, finish: float = 1, **options) -> Iterator[tuple[str, Served]]:
    """Serve in a thread; yield the address and what is served, once all is compiled.

    At the end what still runs is cut off after `finish` seconds.
    """
    options = ServeOptions(**{"slots": 1, "port": 0, "device": "cpu", "max_tokens": 256} | options)
    with answering(options) as server:
        server.config.timeout_graceful_shutdown = finish
        with jax.set_mesh(make_mesh(options.mesh)):
            served = load_served(options)
        worker = served.worker
        worker.thread.start()
        server.app, server.give_up, server.stop_work = make_app(served), worker.give_up, worker.stop
        wait_until(lambda: server.started and (worker.status == "ok" or not compiled))
        yield server.address, served


@contextmanager
def starting(**options) -> Iterator[str]:
    """Start as serve.py does, in threads of this process; yield the address before there is a model."""
    options = ServeOptions(slots=1, port=0, device="cpu", **options)
    with answering(options) as server:
        threading.Thread(target=serve, args=[options, server], daemon=True).start()
        yield server.address


def client(url: str, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def ask(url: str, body: dict | None = None, key: str | None = None) -> tuple[int, dict]:
    """GET, or POST a body; return the status and the JSON of the answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.request("GET" if body is None else "POST", url, json=body, headers=headers, timeout=120)
    return answer.status_code, answer.json()
