"""A server in a process of its own, and OpenAI's client, for the tests of serving/."""

import subprocess
import sys
import time
from dataclasses import replace

import jax
import openai
import pytest

from config.options import Options
from data.tokenizer import CharTokenizer
from data.writer import load_tokenizer
from runs.manifest import Manifest
from tests.helpers import DEADLINE, ROOT, free_port, save_run
from tests.tools.serving.served_run import serving, train_run
from training.state import create_state, model_config

SHAPE = replace(Options(), n_layer=1, n_head=2, n_embd=16, block_size=32, position="rope", device="cpu")


def save_random(folder, tokenizer, seed=1337):
    """Save a run with random weights, so large that the text depends on the prompt."""
    options = replace(SHAPE, out_dir=str(folder), seed=seed)
    state = create_state(model_config(options, tokenizer.vocab_size), options)
    state = jax.tree.map(lambda w: 8 * w if w.ndim > 1 else w, state)
    return save_run(folder, state, Manifest(options, tokenizer.vocab_size, tokenizer.to_json(), None))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has trained, with several checkpoints."""
    return train_run(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def server(run):
    """A server of `run`; test files may have their own."""
    with serving(out_dir=str(run)) as server:
        yield server


@pytest.fixture(scope="session")
def byte_run(tmp_path_factory, tokenizer_json):
    """A run whose tokens are bytes, so that most characters are several."""
    return save_random(tmp_path_factory.mktemp("runs") / "bytes", load_tokenizer(str(tokenizer_json)))


@pytest.fixture(scope="session")
def char_run(tmp_path_factory):
    tokenizer = CharTokenizer("\n :abcdefghijklmnopqrstuvwxyzAUSr"[:-1])
    return save_random(tmp_path_factory.mktemp("runs") / "chars", tokenizer)


class Server:
    """serve.py in a process of its own."""

    def __init__(self, log, *options: str):
        self.port, self.log = free_port(), log
        command = [sys.executable, "serve.py", f"--port={self.port}", "--device=cpu", *options]
        with log.open("w") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        deadline = time.monotonic() + DEADLINE
        while "\ncompiled " not in log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                pytest.fail(log.read_text())
            time.sleep(0.05)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options) -> openai.OpenAI:
        settings = {"base_url": f"{self.url}/v1", "api_key": "any", "max_retries": 0} | options
        return openai.OpenAI(**settings)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """`serve("--out_dir=...")` starts a server, which ends with the module's tests."""
    servers = []

    def start(*options: str) -> Server:
        servers.append(Server(tmp_path_factory.mktemp("log") / "log", *map(str, options)))
        return servers[-1]

    yield start
    for server in servers:
        server.end()
