"""A run made visible: options.json, metrics.jsonl, loss.png, lines of progress, Weights & Biases."""

import json
import math
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter

from common.devices import known_device
from common.errors import UserError
from common.files import GONE, first_line, naming, refusing, write_whole, written
from config.options import Options
from model import GPTConfig
from parallel.machines import peak_memory
from runs.process import say
from training.compute import choose_how
from training.optimizer import is_block_matrix

SHOW_EVERY = 10  # seconds between lines of progress
Number = FiniteFloat | Annotated[int, Field(lt=2**32)]
RECORD = TypeAdapter(dict[str, Number], config=ConfigDict(strict=True))


@cache  # JAX takes a while to trace a model, and published runs are often of one
def count_parameters(config: GPTConfig) -> int:
    model = eqx.filter_eval_shape(config.build, jax.random.key(0))
    return sum(x.size for x in jax.tree.leaves(model))


def flops_per_token(config: GPTConfig, T: int) -> int:
    """Return the FLOPs of matrix products per token of a training step on sequences of T tokens.

    A matrix of P parameters takes 6 P, a layer's attention 12 T H C: like nanoGPT and PaLM (arXiv:2204.02311,
    appendix B), this counts the causal half that a good kernel skips, and for a window twice the keys that a
    token attends to on average.
    """
    model = eqx.filter_eval_shape(config.build, jax.random.key(0))
    arrays = jax.tree.leaves_with_path(model)
    blocks = sum(x.size for path, x in arrays if is_block_matrix(path, x))
    matrices = blocks + config.vocab_size * config.n_embd
    N = min(config.window or T, T)
    return 6 * matrices + 12 * config.n_layer * (2 * N - N * N // T) * config.n_head * config.head_size


class Metrics:
    """A run's records: a line of metrics.jsonl for each logged step and each evaluation, by process 0.

    It begins at the iteration `start`, which may be `evaluated` already.
    """

    def __init__(
        self, options: Options, start: int, config: GPTConfig, devices: int, evaluated: bool = False
    ):
        self.options, self.start = options, start
        self.speed = Speed(options, config, devices)
        self.making_batch = self.speed.making_batch
        self.primary = jax.process_index() == 0
        self.path = Path(options.out_dir, "metrics.jsonl") if self.primary else Path(os.devnull)
        self.wandb = start_wandb(options, start > 0) if options.wandb_log and self.primary else None
        if self.primary:
            keep_records(self.path, start, evaluated)
            if start == 0 and self.wandb is None:
                Path(options.out_dir, "wandb_id.txt").unlink(missing_ok=True)  # of a run that is overwritten
            if start == 0 and not evaluated:  # of rl.py's run that is overwritten
                Path(options.out_dir, "rollouts.jsonl").unlink(missing_ok=True)
            write_whole(Path(options.out_dir, "options.json"), json.dumps(vars(options), indent=1) + "\n")
        self.file = open(self.path, "a", buffering=1)  # flushes each line
        self.shown = -math.inf  # when a line of progress was
        self.pending = None  # the step whose metrics are not read yet

    def step(self, iteration: int, metrics: dict[str, jax.Array], tokens: int) -> None:
        """Note a step that has just been started, and read the one before, so that the device never waits."""
        for x in metrics.values():
            x.copy_to_host_async()  # so that it is here when it is read: 1.8 ms a step, not 3.4, on an H200
        self._read_pending()
        # A step on one CPU is done by now: the call that started it did not return before.
        ended = time.perf_counter() if metrics["loss"].is_ready() else None  # ty: ignore[missing-attribute]
        self.pending = iteration, metrics, tokens, ended, self.speed.batch_seconds

    def catch_up(self) -> None:
        """Read the last step, and keep the time until the next out of the speed."""
        self._read_pending()
        self.speed.began = None

    def _read_pending(self) -> None:
        if self.pending is None:
            return
        iteration, metrics, self.speed.tokens, ended, batch_seconds = self.pending
        self.pending = None
        values = {name: float(x) for name, x in metrics.items()}  # waits for the step's end
        self.speed.ended(ended or time.perf_counter(), batch_seconds)
        check_finite(iteration, {name: values[name] for name in ("loss", "grad_norm")})
        if iteration % self.options.log_interval == 0:
            values |= self.speed.figures()
            self.write({"iter": iteration, **values})
            # The first step has taken longer, so that it says nothing of the others.
            if iteration > self.start and time.perf_counter() >= self.shown + SHOW_EVERY:
                self.shown = time.perf_counter()
                speed = f"{values['tokens_per_second']:,.0f} tokens/s, {values['ms']:.1f} ms/step"
                left = f"{(self.options.max_iters - iteration) * values['ms'] / 60e3:.0f} min left"
                say(f"iter {iteration}: loss {values['loss']:.3f}, {speed}, {left}")

    def evaluation(self, iteration: int, means: dict[str, float], shown: str) -> None:
        check_finite(iteration, means)
        self.write({"iter": iteration} | means)
        say(f"iter {iteration}: {shown}")

    def write(self, record: dict[str, Any]) -> None:
        """Write a line, whose `iter` is an iteration, for W&B too."""
        with naming(self.path):
            self.file.write(json.dumps(record) + "\n")
        if self.wandb is not None:
            self.wandb.log(record)  # without `step`, by which W&B would drop a curve that goes back

    def close(self) -> None:
        if self.wandb is not None:
            self.wandb.finish()
        with suppress(OSError):  # a full disk has ended the run, which says so
            self.file.close()
            if self.primary:
                try:
                    draw(read_records(self.path), self.path.with_name("loss.png"))
                except (ValueError, ArithmeticError) as error:  # of numbers too large for an axis
                    print(f"note: loss.png is not drawn: {first_line(error)}", file=sys.stderr)


class Speed:
    """The clock of a run. A step begins where the one before ended; pauses are left out."""

    def __init__(self, options: Options, config: GPTConfig, devices: int):
        self.tokens = options.tokens_per_step  # of the step that ended last
        known = known_device(jax.devices()[0].device_kind)
        comparable = choose_how(options, config).dtype == "bfloat16" and not options.lora_rank
        self.peak = known.peak * devices if known and comparable else None
        self.flops = flops_per_token(config, options.block_size)
        self.steps: list[tuple[float, float, int]] = []  # of each its seconds, its batch's, and its tokens
        self.batch_seconds = 0.0  # of the batch made last
        self.began = None  # when the next step to end began; None in a pause

    @contextmanager
    def making_batch(self) -> Generator[None]:
        start = time.perf_counter()
        if self.began is None:
            self.began = start
        yield
        self.batch_seconds = time.perf_counter() - start

    def ended(self, when: float, batch_seconds: float) -> None:
        assert self.began is not None, "its batch was made after the pause"
        self.steps.append((when - self.began, batch_seconds, self.tokens))
        self.began = when

    def figures(self) -> dict[str, float]:
        """Return the means of the steps since the last call; `mfu` where all weights train in bfloat16."""
        seconds, batch_seconds, tokens = (sum(x) / len(self.steps) for x in zip(*self.steps, strict=True))
        self.steps.clear()
        per_second = tokens / seconds
        figures = {"ms": 1e3 * seconds, "data_ms": 1e3 * batch_seconds, "tokens_per_second": per_second}
        mfu = {} if self.peak is None else {"mfu": self.flops * per_second / self.peak}
        return figures | {"memory_mb": peak_memory() / 1e6} | mfu


def check_finite(iteration: int, values: dict[str, float]) -> None:
    """Raise UserError for a run that has diverged."""
    if not all(map(math.isfinite, values.values())):
        found = ", ".join(f"{name} is {x}" for name, x in values.items())
        advice = "resume from the last checkpoint, or begin anew, with a lower learning_rate"
        raise UserError(f"iter {iteration}: {found}; {advice}")


def keep_records(path: Path, start: int, evaluated: bool) -> None:
    """Drop from the file what the run does again: its steps from `start` on, and the evaluations."""
    found = read_records(path) if start > 0 or evaluated else []
    records = [r for r in found if r["iter"] < start + (evaluated and "loss" not in r)]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in records))


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl, if it is there, without its damaged lines."""
    with suppress(*GONE), path.open("rb") as file:
        return list(filter(None, map(parse_record, file)))
    return []


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None if it is damaged."""
    with suppress(ValueError):
        record = RECORD.validate_json(line)
        return record if type(record.get("iter")) is int else None


def start_wandb(options: Options, resumed: bool):
    """Start a run at Weights & Biases, or go on with that of a resumed run."""
    path = Path(options.out_dir) / "wandb_id.txt"
    advice = "run `wandb login`, set WANDB_MODE=offline, or give --wandb_log=False"
    with refusing(
        "wandb_log=True: it cannot start", advice, Exception
    ):  # its package or the key may be missing
        import wandb  # not above, as it takes a second

        run = wandb.init(
            project=options.wandb_project,
            name=options.wandb_run_name,
            config=vars(options),
            dir=options.out_dir,
            id=path.read_text().strip() if resumed and path.exists() else None,
            resume="allow",
        )
        run.define_metric("*", step_metric="iter")
        write_whole(path, run.id)
        return run


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Draw the curves of the losses, or of a run that learns from rewards those of the rewards."""
    from matplotlib.figure import Figure  # not above, as it takes half a second

    axes = (figure := Figure()).subplots()
    rewarded = any("val/reward" in record for record in records)
    names = ("reward", "val/reward") if rewarded else ("loss", "train/loss", "val/loss")
    for name in names:
        points = {record["iter"]: record[name] for record in records if name in record}
        style = "o-" if "/" in name else "-"
        axes.plot(list(points), list(points.values()), style, label=name, markersize=3, linewidth=0.8)
    axes.set(xlabel="iteration", ylabel="mean reward" if rewarded else "loss (nats per token)")
    axes.legend()
    with written(path) as file:
        figure.savefig(file, format="png", dpi=120)
