"""Time what writes text: decoding (`bench.py --decode`) and the server (`bench.py --serve`)."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import equinox as eqx
import httpx2
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from common.errors import UserError
from config.options import Options
from generation.decode import generate
from generation.sampling import GREEDY
from model import GPT, GPTConfig
from training.compute import for_inference
from training.state import create_state

NEW = 100  # tokens of each text
ROWS = (1, 4, 16)  # texts at once
TURNS = 5
ROOT = Path(__file__).resolve().parents[2]

# Decoding


def measure_decoding(config: GPTConfig, options: Options) -> list[dict[str, Any]]:
    """Return tokens/s without the cache, and with it for more and more texts at once, decoded greedily."""
    model = for_inference(
        create_state(config, options).model, options.dtype, options.attention, options.deterministic
    )
    ways: dict[str, tuple[int, Callable]] = {"whole context for each token": (1, partial(recompute, model))}
    ways |= {f"with the cache, {n} at once": (n, partial(decode, model, n)) for n in ROWS}
    times = {name: [] for name in ways}
    for _ in range(TURNS + 1):
        for name, (_, write) in ways.items():
            start = time.perf_counter()
            write()
            times[name].append(time.perf_counter() - start)
    # The first turn compiles.
    rates = {name: n * NEW / median(times[name][1:]) for name, (n, _) in ways.items()}
    return [{"name": name, "tokens_per_second": rate} for name, rate in rates.items()]


def decode(model: GPT, n: int) -> np.ndarray:
    prompt, key = np.zeros((n, 1), np.int32), jax.random.key(0)
    return np.hstack(list(generate(model, prompt, key=key, max_new_tokens=NEW, settings=GREEDY)))


def recompute(model: GPT) -> list[int]:
    """Decode by nanoGPT's rule: the last block_size tokens are the context, padded, to be compiled once."""
    S, tokens = model.config.block_size, [0]
    for _ in range(NEW):
        context = tokens[-S:]
        padded = np.array([context + [0] * (S - len(context))], np.int32)
        tokens.append(int(likeliest_next(model, padded, np.int32(len(context)))))
    return tokens[1:]


@eqx.filter_jit
def likeliest_next(model: GPT, context, length):
    """Return the likeliest token after the first `length` of `context` (1, S)."""
    x = lax.dynamic_slice_in_dim(model.features(context), length - 1, 1, axis=1)
    return jnp.argmax(model.logits(x))


# The server: serve.py, in a process of its own. Its clients are here.


def measure_serving(options: Options) -> list[dict[str, Any]]:
    """Return what clients of a server of out_dir's run see, when 1, 4 or 16 ask at a time."""
    figures = []
    with serving(options) as (url, model):
        ask_together(url, model, max(ROWS), max(ROWS))  # warms up
        for clients in ROWS:
            start = time.perf_counter()
            answers = ask_together(url, model, 4 * clients + 4, clients)
            seconds = time.perf_counter() - start
            first, gaps, tokens = zip(*answers, strict=True)
            own = {"name": f"{clients} at a time", "tokens_per_second": sum(tokens) / seconds}
            for name, times in (("first_token_ms", first), ("between_parts_ms", np.concatenate(gaps))):
                own[name], own[f"{name}_p95"] = 1e3 * np.quantile(times, (0.5, 0.95))
            figures.append(own)
    return figures


@contextmanager
def serving(options: Options) -> Generator[tuple[str, str]]:
    """Within, a server runs, at the URL and with the model's name that are yielded. Raises UserError."""
    given = [f"--{name}={getattr(options, name)}" for name in ("out_dir", "dtype", "device")]
    given += ["--port=0", f"--slots={max(ROWS)}"]
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "serve.py"), *given], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        line = next((line for line in server.stdout if line.startswith("serving ")), None)
        if line is None:
            raise UserError(f"out_dir={options.out_dir}: serve.py did not start there")
        name, _, url = line.strip().removeprefix("serving ").rpartition(" at ")
        next(line for line in server.stdout if line.startswith("compiled "))
        yield url, name
    finally:
        server.terminate()
        server.wait()


def ask_together(url: str, model: str, n: int, clients: int) -> list[tuple]:
    """Ask n times, so many at a time. Return the answers of `ask`."""
    local = httpx2.Client(base_url=url, timeout=None, trust_env=False)  # not by way of a proxy
    with local as client, ThreadPoolExecutor(clients) as pool:
        return list(pool.map(partial(ask, client, model), range(n)))


def ask(client: httpx2.Client, model: str, i: int) -> tuple[float, np.ndarray, int]:
    """Ask for a streamed completion. Return seconds to its first token and between its parts, and tokens."""
    prompt = [1] * (4 + 8 * (i % 4))  # 4 to 28 tokens
    usage = {"include_usage": True}
    body = dict(model=model, prompt=prompt, max_tokens=NEW, seed=i, stream=True, stream_options=usage)
    times, tokens = [time.perf_counter()], 0
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.raise_for_status().iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                tokens = chunk["usage"]["completion_tokens"] if chunk["usage"] else tokens
                if chunk["choices"]:
                    times.append(time.perf_counter())
    first, *gaps = np.diff(times)
    return first, np.array(gaps), tokens
