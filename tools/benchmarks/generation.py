"""Time what writes text: decoding (`bench.py --decode`), the engine and the server (`bench.py --serve`).

The engine makes one sequence and several together, next to `generate` of transformers on the exported weights
where PyTorch is installed. The server is serve.py, in a process of its own; its clients are here, and ask
together and at random.
"""

import asyncio
import contextlib
import importlib.util
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from config.command_line import UserError
from config.options import Options
from generation.decode import generate
from generation.engine import Engine, Request
from hub.export import which_family, write_model
from model import GPT, GPTConfig
from runs.load import load_run
from training.state import create_state

DECODED = 256  # tokens
SLOTS = 16
PROMPT = 8  # tokens, in the first table
NEW = 100  # tokens of an answer
TURNS = 5
TOGETHER = {1: 8, 4: 24, 16: 64}  # requests in all, by how many ask at the same time
LOAD = 0.6  # of the tokens/s of 16 together, for requests that come at random
PROMPTS = ("def ", "class Reader:\n", "    return ", "import os\n\n\ndef walk(top):\n")


def in_turns(ways: dict[str, Callable[[], object]]) -> dict[str, np.ndarray]:
    """Time each way in turns, once each has run. Return the medians: seconds, and CPU seconds here."""
    times = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, way in ways.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            way()
            if turn:
                times[name].append((time.perf_counter() - began, time.process_time() - cpu_began))
    return {name: np.median(found, axis=0) for name, found in times.items()}


# Decoding


def report_decoding(config: GPTConfig, options: Options) -> None:
    """Print tokens/s of `generate`, and of reading the whole context anew for every token."""
    model = create_state(config, options).model
    ways = {"with the key/value cache": with_cache, "whole context every token": without_cache}
    times = in_turns({name: partial(way, model) for name, way in ways.items()})
    print(f"\n{DECODED} tokens, one row, greedy{'tokens/s':>26}{'ms/token':>12}")
    for name, (seconds, _) in times.items():
        print(f"{name:40}{DECODED / seconds:16,.0f}{1e3 * seconds / DECODED:12.3f}")
    cached, recomputed = times.values()
    print(f"{'ratio':40}{recomputed[0] / cached[0]:15.1f}x")


def with_cache(model: GPT) -> list[int]:
    prompt, key = np.zeros((1, 1), np.int32), jax.random.key(0)
    made = generate(model, prompt, key=key, max_new_tokens=DECODED, temperature=0)
    return [int(token) for tokens in made for token in tokens[0]]


def without_cache(model: GPT) -> list[int]:
    """Decode by nanoGPT's rule: the last block_size tokens are the context, padded, to be compiled once."""
    S, tokens = model.config.block_size, [0]
    for _ in range(DECODED):
        context = tokens[-S:]
        padded = np.array([context + [0] * (S - len(context))], np.int32)
        tokens.append(int(likeliest_next(model, padded, np.int32(len(context)))))
    return tokens[1:]


@eqx.filter_jit
def likeliest_next(model: GPT, context, length):
    """Return the likeliest token after the first `length` of `context` (1, S)."""
    x = lax.dynamic_slice_in_dim(model.features(context), length - 1, 1, axis=1)
    return jnp.argmax(model.logits(x))


# The engine and the server


def report_serving(options: Options) -> None:
    """Print both tables for the run in out_dir. Raises UserError when there is none."""
    model, _, _ = load_run(options.out_dir, dtype=options.dtype)
    report_engine(model)
    report_server(options.out_dir, options.dtype)


def report_engine(model: GPT) -> None:
    engine = Engine(model, SLOTS)
    engine.compile()
    ways: dict[str, tuple[int, Callable[[], None]]] = {
        f"engine, {n} of {SLOTS} slots": (n, partial(run_engine, engine, n)) for n in (1, 4, SLOTS)
    }
    if importlib.util.find_spec("torch"):
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = exported(model)
        for n in (1, SLOTS):
            ways[f"transformers, batch of {n}"] = n, partial(run_transformers, theirs, n)
    times = in_turns({name: way for name, (_, way) in ways.items()})
    title = f"{NEW} tokens after {PROMPT}, greedy"
    print(f"\n{model.config.compute.dtype}, transformers in float32")
    print(f"{title:30}{'tokens/s':>12}{'of one':>9}{'tokens/CPU s':>15}{'of one':>9}")
    rates = {name: n * NEW / times[name] for name, (n, _) in ways.items()}
    first = next(iter(rates.values()))
    for name, rate in rates.items():
        (wall, cpu), (wall_of_one, cpu_of_one) = rate, rate / first
        print(f"{name:30}{wall:12,.0f}{wall_of_one:8.2f}x{cpu:15,.0f}{cpu_of_one:8.2f}x")


def run_engine(engine: Engine, n: int) -> None:
    for i in range(n):
        engine.add(Request(np.arange(PROMPT, dtype=np.int32) + i, jax.random.key(i), NEW, temperature=0))
    while not engine.idle:
        engine.step()


def exported(model: GPT):
    """Return the model as transformers has it."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), model, which_family(model.config), None)
        return AutoModelForCausalLM.from_pretrained(folder).eval()


def run_transformers(theirs, n: int) -> None:
    import torch

    prompt = torch.arange(PROMPT)[None] + torch.arange(n)[:, None]
    settings = dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
    with torch.inference_mode():
        made = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    assert made.shape == (n, PROMPT + NEW)


def report_server(out_dir: str, dtype: str) -> None:
    print(f"\n{'requests':30}{'tokens/s':>12}{'first token, ms':>22}{'between parts, ms':>22}")
    print(f"{'':42}{'median':>13}{'p95':>9}{'median':>13}{'p95':>9}")
    with serving(out_dir, dtype) as where:
        asyncio.run(together(where, SLOTS, SLOTS))  # warms up
        for clients, n in TOGETHER.items():
            rate = print_row(f"{clients} at a time", together(where, n, clients))
        arrivals = LOAD * rate / NEW
        print_row(f"at random, {arrivals:.0f} a second", at_random(where, TOGETHER[SLOTS], arrivals))


def print_row(name: str, asking: Coroutine) -> float:
    """Run clients, and print and return their tokens/s. They return the answers of `ask`."""
    began = time.perf_counter()
    first, gaps, tokens = zip(*asyncio.run(asking), strict=True)
    rate = sum(tokens) / (time.perf_counter() - began)
    quantiles = [1e3 * np.quantile(times, q) for times in (first, sum(gaps, [])) for q in (0.5, 0.95)]
    print(f"{name:30}{rate:12,.0f}" + "{:13.1f}{:9.1f}{:13.1f}{:9.1f}".format(*quantiles), flush=True)
    return rate


@contextmanager
def serving(out_dir: str, dtype: str) -> Generator[tuple[str, str]]:
    """Within, a server runs, on the port and with the model's name that are yielded."""
    options = [f"--out_dir={out_dir}", f"--dtype={dtype}", "--port=0", f"--slots={SLOTS}"]
    command = [sys.executable, "serve.py", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        words = next((line.split() for line in server.stdout if line.startswith("serving ")), None)
        if words is None:
            raise UserError(f"out_dir={out_dir}: serve.py did not start there")
        next(line for line in server.stdout if line.startswith("compiled "))
        yield words[-1].rpartition(":")[2], words[1]
    finally:
        server.terminate()
        server.wait()


async def ask(where: tuple[str, str], i: int) -> tuple[float, list[float], int]:
    """Ask for a streamed completion. Return seconds to its first token and between its parts, and tokens."""
    port, model = where
    body = {"model": model, "prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": NEW, "seed": i}
    data = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}})
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n{data}".encode())
    times, tokens = [], 0
    while (line := await reader.readline()) != b"data: [DONE]\n":
        if not line:
            raise ConnectionError("the server closed the connection")
        if line.startswith(b"data: "):
            chunk = json.loads(line[6:])
            tokens = chunk["usage"]["completion_tokens"] if chunk["usage"] else tokens
            if chunk["choices"]:
                times.append(time.perf_counter())
    writer.close()
    return times[0] - began, np.diff(times).tolist(), tokens


async def together(where: tuple[str, str], n: int, clients: int) -> list[tuple]:
    """Have so many clients ask, each for its next completion when it has the one before."""
    numbers = iter(range(n))

    async def client() -> list[tuple]:
        return [await ask(where, i) for i in numbers]

    answers = await asyncio.gather(*(client() for _ in range(clients)))
    return [answer for own in answers for answer in own]


async def at_random(where: tuple[str, str], n: int, rate: float) -> list[tuple]:
    """Ask so many times a second on average, as a Poisson process, whether or not the answers keep up."""
    draw, asked = random.Random(0), []
    for i in range(n):
        asked.append(asyncio.create_task(ask(where, i)))
        await asyncio.sleep(draw.expovariate(rate))
    return await asyncio.gather(*asked)
