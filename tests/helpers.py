"""Helpers of several test files: refusals, programs of their own, the files of a run, arrays compared."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from common.errors import command
from config.options import Options
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from model import GPT
from parallel.mesh import AXES, batch_sharding, make_mesh
from runs.checkpoint import Checkpoints, Manifest, arrays_by_name
from training.compute import choose_how
from training.state import TrainState, model_config, state_shapes
from training.step import loss_and_gradients as step_gradients

ROOT = Path(__file__).resolve().parents[1]

# Float32 rounds each operation by up to u = 2^-24, and roundings add up like a random walk. A forward and a
# backward pass of two or three layers are about 100 operations in a row, the products among them sums of up
# to about 200 terms, whose order is free: sqrt(100 * 200) u.
FLOAT32_ROUNDING = 1e-5

# XLA's older way to make loops compiles a tiny model in less than half the time. JAX 0.12 no longer has it.
OLD_LOOPS = "--xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11) else ""

DEADLINE = 240  # seconds: PyTorch without a compiler takes 75 on a slow machine

# The fields of a step's record that differ from run to run.
SPEED_FIELDS = {"ms", "data_ms", "memory_mb", "tokens_per_second"}


# Options of a run that is long enough to be disturbed.
LONG_RUN = {"max_iters": 600, "eval_interval": 50, "log_interval": 100, "lr_decay_iters": 600}

# Options of a model that is neither GPT-2 nor Llama.
MODERN = dict(mlp="relu2", position="rope", norm="rmsnorm", qk_norm=True)


def slowly(*values) -> list:
    """Return the values as parameters of a test that run with the slow ones alone; a tuple is several."""
    each = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*value, marks=pytest.mark.slow) for value in each]


def flags(options: dict, **changes) -> list[str]:
    """Return the words of a command line that set these options."""
    return [f"--{name}={value}" for name, value in (options | changes).items()]


# --- refusals -----------------------------------------------------------------------------------------------


def refusal(function: Callable, *arguments, **options) -> str:
    """Call `function` as a command's main, and return the one line with which it refuses.

    Checks that the command ends with status 2, after exactly one line that begins with "error: ", which is
    the last on stderr and without a traceback. What is returned begins after that.
    """
    with contextlib.redirect_stderr(io.StringIO()) as stderr, pytest.raises(SystemExit) as ended:
        command(lambda argv: function(*arguments, **options))
    assert ended.value.code == 2
    return error_line(stderr.getvalue())


def error_line(stderr: str) -> str:
    """Return what a command's only error line says, and check that it is the last line on stderr."""
    lines = stderr.splitlines()
    assert "Traceback" not in stderr and sum(line.startswith("error: ") for line in lines) == 1, stderr
    assert lines[-1].startswith("error: "), stderr
    return lines[-1].removeprefix("error: ")


# --- programs -----------------------------------------------------------------------------------------------

_started: list[subprocess.Popen] = []


def start_python(*words: str | Path, cwd: Path = ROOT, **environment: str | int) -> subprocess.Popen:
    """Start `python *words`, with text pipes for its output. It is killed at the end of the test."""
    _started.append(
        subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=cwd,
            env=os.environ | {name: str(value) for name, value in environment.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    return _started[-1]


def run_python(
    *words: str | Path, cwd: Path = ROOT, **environment: str | int
) -> subprocess.CompletedProcess[str]:
    """Run `python *words` to its end, which comes before DEADLINE; `stdout` and `stderr` are text."""
    process = start_python(*words, cwd=cwd, **environment)
    printed, errors = process.communicate(timeout=DEADLINE)
    return subprocess.CompletedProcess(process.args, process.returncode, printed, errors)


def kill_started() -> None:
    """Kill the programs of `start_python` that still run. conftest.py calls this after each test."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_until(condition: Callable[[], bool], *processes: subprocess.Popen) -> None:
    """Return once `condition()` is true. Fails when a process ends before that, and at DEADLINE."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            for process in processes:
                process.kill()
            pytest.fail(f"it did not come to that: {[process.communicate() for process in processes]}")
        time.sleep(0.005)


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def write_tiny_data(folder: Path) -> CharTokenizer:
    """Write a data set: 28 characters, 1,500 of them for training and 300 for validation."""
    text = "the quick brown fox jumps over the lazy dog. " * 40
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    ids = tokenizer.encode(text)
    write_dataset(folder, ids[:1500], ids[1500:], tokenizer, "a test")
    return tokenizer


# --- the files of a run -------------------------------------------------------------------------------------


def records(out: Path) -> list[dict]:
    """Read a run's metrics.jsonl. It is strict JSON, which has no NaN."""
    lines = (Path(out) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def losses(out: Path) -> dict[tuple[int, str], float]:
    """Return every loss in a run's records by iteration and name: loss of a step, train/loss, val/loss."""
    names = ("loss", "train/loss", "val/loss")
    return {(r["iter"], name): r[name] for r in records(out) for name in names if name in r}


def saved_iterations(out: Path) -> list[int]:
    """Return the iterations of a run's checkpoints, in order. Fails where one is not whole."""
    return sorted(int(path.name) for path in (Path(out) / "checkpoints").glob("*"))


def newest_checkpoint(out: Path) -> int:
    """Return the iteration of the newest whole checkpoint of a run that may be writing; 0 without one."""
    names = [path.name for path in (Path(out) / "checkpoints").glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def saved_state(out: Path, iteration: int | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of a checkpoint, by default the newest, onto one device, by name."""
    run = Checkpoints(str(out))
    iteration = run.latest() if iteration is None else iteration
    saved = run.manifest(iteration)
    shapes = state_shapes(model_config(saved.options, saved.vocab_size), saved.options)
    arrays = named_arrays(run.restore(iteration, shapes))
    assert {name.partition(".")[0] for name in arrays} == {"model", "opt_state", "step"}
    return arrays


def save_run(out: Path, state, manifest: Manifest, val_loss: float | None = None) -> Path:
    """Save a state as a checkpoint of the run in `out`, and return `out`."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(str(out))
    checkpoints.save(state, manifest, val_loss)
    checkpoints.wait()
    return out


def save_overfitted(out: Path, state, manifest: Manifest) -> Path:
    """Save a run whose best checkpoint, at iteration 1, has the weights of `state`. Return `out`.

    The last, at iteration 2, has others.
    """
    worse = jax.tree.map(lambda x: x - 0.3 * np.cos(np.arange(x.size)).reshape(x.shape), state.model)
    for iteration, model, val_loss in ((1, state.model, 2.0), (2, worse, 3.0)):
        state = TrainState(model, state.opt_state, jnp.asarray(iteration, jnp.int32))
        save_run(out, state, manifest, val_loss)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder and below it, by its path in there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- arrays -------------------------------------------------------------------------------------------------


def named_arrays(tree) -> dict[str, np.ndarray]:
    """Copy the arrays of a tree to the host, by name, as in blocks.attn.c_q.weight."""
    return {name: np.asarray(x) for name, x in arrays_by_name(tree).items()}


def moved(tree, amount: float = 0.01):
    """Move every element of a tree's arrays, so that none is what it starts as: adapters of 0, norms of 1."""
    return jax.tree.map(lambda x: x + amount * np.cos(np.arange(x.size)).reshape(x.shape), tree)


def assert_same_bits(ours, theirs) -> None:
    """Check that the arrays of two trees have the same names, dtypes, shapes and bytes."""
    ours, theirs = named_arrays(ours), named_arrays(theirs)
    assert ours and ours.keys() == theirs.keys()
    for name, x in ours.items():
        y = theirs[name]
        assert (x.dtype, x.shape) == (y.dtype, y.shape) and x.tobytes() == y.tobytes(), name


def distance(a, b) -> float:
    """Return the norm of a - b relative to that of b."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def assert_close(ours, theirs, rounding: float = FLOAT32_ROUNDING) -> None:
    """Check that the arrays of two trees, parameters or gradients, have the same names and are close.

    The norm of a difference is to be below `rounding` times that of the array.
    """
    ours, theirs = named_arrays(ours), named_arrays(theirs)
    assert ours and ours.keys() == theirs.keys()
    for name, x in ours.items():
        assert x.shape == theirs[name].shape, name
        # A key's bias adds the same to all of a query's scores, so that without rope its gradient is 0, and
        # found as the rounding of the others'. It is held to the size of the queries'.
        size = np.linalg.norm(theirs[name.replace("attn.c_k.bias", "attn.c_q.bias")])
        assert np.linalg.norm(x - theirs[name]) < rounding * size, name


def assert_same_curve(ours: dict, theirs: dict) -> None:
    """Check that two runs' `losses` differ by no more than a sum's order makes of them in some ten steps.

    Adam divides by a gradient's size, so that rounding shows in the weights where a gradient is nearly zero,
    by up to lr per step; ten steps of it move the loss far less than 1e-3.
    """
    assert ours == pytest.approx(theirs, rel=1e-3)


def random_batch(options: Options, vocab_size: int, seed: int = 0) -> np.ndarray:
    """Draw the tokens of a step: x and y, stacked, int32 (2, A, B, T)."""
    shape = (2, options.gradient_accumulation_steps, options.batch_size, options.block_size)
    return np.random.default_rng(seed).integers(vocab_size, size=shape, dtype=np.int32)


# The kind and platform that JAX names some devices by.
CPU, H100, V5E = ("cpu", "cpu"), ("NVIDIA H100 80GB HBM3", "gpu"), ("TPU v5 lite", "tpu")


def on(kind: str, platform: str, count: int = 1):
    """The context of a mesh of such devices, which need not exist: what is traced there is for them."""
    device = AbstractDevice(device_kind=kind, num_cores=None, platform=platform)
    mesh = AbstractMesh((1, count, 1, 1), AXES, (AxisType.Auto,) * len(AXES), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def mean_gradients(options: Options, model: GPT, x, y, key=None):
    """Compute the loss and gradients of a step, as `train_step` does."""
    return step_gradients(model, x, y, key, options, choose_how(options, model.config))


def loss_and_gradients(
    create: Callable[[Options], GPT], options: Options, mesh: str
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss of the model `create(options)` on a random batch, and its gradients by name.

    It is computed on the devices of `mesh`, with dropout if the options have it.
    """

    def compute(model, x, y):
        return mean_gradients(options, model, x, y, jax.random.key(7) if options.dropout else None)

    with jax.set_mesh(make_mesh(mesh)):
        model = create(options)
        x, y = jax.device_put(random_batch(options, model.config.vocab_size), batch_sharding(4))
        loss, gradients = jax.jit(compute)(model, x, y)
        return float(loss), named_arrays(gradients)


@cache
def on_one_device(create: Callable[[Options], GPT], options: Options) -> tuple[float, dict[str, np.ndarray]]:
    """Return `loss_and_gradients` of one device, which is computed once for each `create` and options."""
    return loss_and_gradients(create, options, "data:1")


def assert_as_on_one_device(
    create: Callable[[Options], GPT], options: Options, mesh: str, rounding=FLOAT32_ROUNDING, **changes
) -> None:
    """Check that `create(options)`, with these changes on a mesh, has one device's loss and gradients."""
    expected_loss, expected = on_one_device(create, options)
    loss, found = loss_and_gradients(create, replace(options, **changes), mesh)
    assert loss == pytest.approx(expected_loss, rel=rounding)
    assert_close(found, expected, rounding)


def can_unshare(*kinds: str) -> bool:
    """Tell whether programs may have namespaces of their own here, as of processes or the network."""
    return subprocess.run(["unshare", *kinds, "true"], capture_output=True).returncode == 0
