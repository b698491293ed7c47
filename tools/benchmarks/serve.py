"""Time the server and its engine: `python bench.py config/quickstart.py --serve`, once that has trained.

This prints two tables. The first is of the engine alone, without HTTP: tokens/s of one sequence and of
several together, next to `generate` of transformers on the exported weights, in turns, where PyTorch is
installed. The second is of serve.py and clients, a process each: requests together, and requests that come at
random.
"""

import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from config.command_line import UserError
from config.options import Options
from generation.engine import Engine, Request
from hub.export import write_model
from hub.family import which_family
from hub.weights import FAMILIES
from model import GPT
from runs.load import load_run
from tools.benchmarks.clients import NEW

SLOTS = 16
PROMPT = 8  # tokens, in the first table
TURNS = 5
TOGETHER = {1: 8, 4: 24, 16: 64}  # requests in all, by how many ask at the same time
LOAD = 0.6  # of the tokens/s of 16 together, for requests that come at random


def report_serving(options: Options) -> None:
    """Print both tables for the run in out_dir. Raises UserError when there is none."""
    model, _, _ = load_run(options.out_dir, dtype=options.dtype)
    report_engine(model)
    report_server(options.out_dir, options.dtype)


# The engine alone


def report_engine(model: GPT) -> None:
    engine = Engine(model, SLOTS)
    engine.compile()
    ways = {f"engine, {n} of {SLOTS} slots": (n, lambda n=n: run_engine(engine, n)) for n in (1, 4, SLOTS)}
    if importlib.util.find_spec("torch"):
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = exported(model)
        ways |= {
            f"transformers, batch of {n}": (n, lambda n=n: run_transformers(theirs, n)) for n in (1, SLOTS)
        }
    times = in_turns({name: way for name, (_, way) in ways.items()})
    title = f"{NEW} tokens after {PROMPT}, greedy"
    print(f"\n{model.config.compute.dtype}, transformers in float32")
    print(f"{title:30}{'tokens/s':>12}{'of one':>9}{'tokens/CPU s':>15}{'of one':>9}")
    rates = {name: n * NEW / np.median(times[name], axis=0) for name, (n, _) in ways.items()}
    first = next(iter(rates.values()))
    for name, rate in rates.items():
        (wall, cpu), (wall_of_one, cpu_of_one) = rate, rate / first
        print(f"{name:30}{wall:12,.0f}{wall_of_one:8.2f}x{cpu:15,.0f}{cpu_of_one:8.2f}x")


def in_turns(ways: dict[str, Callable[[], None]]) -> dict[str, list[tuple[float, float]]]:
    """Time each way TURNS times, all in turns, once each has run: seconds, and CPU seconds of the process."""
    times = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, way in ways.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            way()
            if turn:
                times[name].append((time.perf_counter() - began, time.process_time() - cpu_began))
    return times


def run_engine(engine: Engine, n: int) -> None:
    for i in range(n):
        engine.add(Request(np.arange(PROMPT, dtype=np.int32) + i, jax.random.key(i), NEW, temperature=0))
    while not engine.idle:
        engine.step()


def exported(model: GPT):
    """Return the model as transformers has it."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), model, which_family(FAMILIES, model.config), None)
        return AutoModelForCausalLM.from_pretrained(folder).eval()


def run_transformers(theirs, n: int) -> None:
    import torch

    prompt = torch.arange(PROMPT)[None] + torch.arange(n)[:, None]
    settings = dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
    with torch.inference_mode():
        made = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    assert made.shape == (n, PROMPT + NEW)


# The server


def report_server(out_dir: str, dtype: str) -> None:
    print(f"\n{'requests':30}{'tokens/s':>12}{'first token, ms':>22}{'between parts, ms':>22}")
    print(f"{'':42}{'median':>13}{'p95':>9}{'median':>13}{'p95':>9}")
    with serving(out_dir, dtype) as ask:
        ask(SLOTS, SLOTS, 0)  # warms up
        for together, n in TOGETHER.items():
            rate = print_row(f"{together} at a time", ask(n, together, 0))
        arrivals = LOAD * rate / NEW
        print_row(f"at random, {arrivals:.0f} a second", ask(TOGETHER[SLOTS], 0, arrivals))


def print_row(name: str, figures: dict) -> float:
    rate = figures["tokens"] / figures["seconds"]
    quantiles = [1e3 * np.quantile(figures[what], q) for what in ("first", "gaps") for q in (0.5, 0.95)]
    print(f"{name:30}{rate:12,.0f}" + "{:13.1f}{:9.1f}{:13.1f}{:9.1f}".format(*quantiles), flush=True)
    return rate


@contextmanager
def serving(out_dir: str, dtype: str) -> Generator[Callable[[int, int, float], dict]]:
    """Within, a server runs. The function yielded has clients ask it: see tools/benchmarks/clients.py."""
    options = [f"--out_dir={out_dir}", f"--dtype={dtype}", "--port=0", f"--slots={SLOTS}"]
    command = [sys.executable, "serve.py", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        words = next((line.split() for line in server.stdout if line.startswith("serving ")), None)
        if words is None:
            raise UserError(f"out_dir={out_dir}: serve.py did not start there")
        name, port = words[1], words[-1].rpartition(":")[2]
        next(line for line in server.stdout if line.startswith("compiled "))

        def ask(n: int, together: int, rate: float) -> dict:
            numbers = map(str, (n, together, rate))
            clients = [sys.executable, "-m", "tools.benchmarks.clients", port, name, *numbers]
            return json.loads(subprocess.run(clients, stdout=subprocess.PIPE, check=True).stdout)

        yield ask
    finally:
        server.terminate()
        server.wait()
