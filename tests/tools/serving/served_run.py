"""Servers in this process, and clients."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import absl.logging
import httpx
import openai
from fastapi import FastAPI

from serve import ServeOptions, listen
from tests.helpers import wait_until
from tools.serving.app import serve
from tools.serving.served import Served
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
def starting(finish: float = 1, **options) -> Iterator[Server]:
    """Start as serve.py does, in threads of this process; yield the server before there is a model.

    At the end what still runs is cut off after `finish` seconds.
    """
    options = ServeOptions(**{"slots": 1, "port": 0, "device": "cpu", "max_tokens": 256} | options)
    with answering(options) as server:
        server.config.timeout_graceful_shutdown = finish
        threading.Thread(target=serve, args=[options, server], daemon=True).start()
        yield server


@contextmanager
def serving(compiled: bool = True, **options) -> Iterator[tuple[str, Served]]:
    """The same; yield the address and what is served, once all is compiled."""
    with starting(**options) as server:
        wait_until(lambda: isinstance(server.app, FastAPI) and server.started)
        served = server.app.state.served
        wait_until(lambda: served.worker.status == "ok" or not compiled)
        yield server.address, served


def client(url: str, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def ask(url: str, body: dict | None = None, key: str | None = None) -> tuple[int, dict]:
    """GET, or POST a body; return the status and the JSON of the answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.request("GET" if body is None else "POST", url, json=body, headers=headers, timeout=120)
    return answer.status_code, answer.json()
