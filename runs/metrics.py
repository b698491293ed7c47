"""A run made visible: the progress bar, metrics.jsonl, loss.png and Weights & Biases."""

import io
import json
import math
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
from jax.experimental.multihost_utils import broadcast_one_to_all
from tqdm import tqdm

from config.command_line import UserError
from config.devices import peak_flops
from config.files import (
    GONE,
    first_line,
    is_number,
    is_whole,
    open_file,
    parse_json,
    read_text,
    reading,
    write_whole,
    written,
)
from config.options import Options
from model import GPTConfig
from runs.hardware import peak_memory
from runs.reference import Reference
from runs.sizes import flops_per_token

LONGEST = 2**30  # bytes of a metrics.jsonl: five million records
LOG_EVERY = 30  # seconds between lines of progress where no terminal shows the bar


class Lines(io.TextIOBase):
    """The file of a bar in a log: each state is a line of stderr, without carriage returns."""

    def write(self, text: str) -> int:
        if line := text.strip("\r\n "):
            print(line, file=sys.stderr, flush=True)
        return len(text)


class Metrics:
    """The records of a run. `metrics.jsonl` holds one JSON object per logged step and per evaluation.

    A record of a step has `iter`, `loss`, `lr`, `grad_norm` and the figures of `Speed`; one of an evaluation
    has `iter`, `train/loss` and `val/loss`. A run resumed at iteration `start` drops the records of steps it
    does again, and lines that cannot be read; the old file is kept as `metrics.dropped.jsonl`.

    Every process of a run has one, but that of process 0 alone writes and shows anything. Raises UserError.
    """

    def __init__(
        self,
        options: Options,
        start: int,
        config: GPTConfig,
        devices: int,
        reference: Reference | None = None,
    ):
        self.options, self.reference = options, reference
        self.primary = jax.process_index() == 0
        self.path = Path(options.out_dir) / "metrics.jsonl"
        self.records = []
        self.sinks: list[Callable[[dict], object]] = []
        self.wandb = None
        if self.primary:
            lines = read_lines(self.path)
            self.records = records_before(start, lines)
            if len(self.records) < len(lines):
                aside = self.path.with_name("metrics.dropped.jsonl")
                dropped = b"\n".join([*read_lines(aside), *lines])
                write_whole(aside, dropped.decode(errors="replace") + "\n")
            write_whole(self.path, "".join(json.dumps(record) + "\n" for record in self.records))
            self.file = open_file(self.path, "a")
            self.sinks = [self.records.append, self._append]
            if options.wandb_log:
                self.wandb = run = start_wandb(options, start > 0)
                self.sinks.append(lambda record: run.log(record, step=record["iter"]))
        evaluated = any(r["iter"] == start and "val/loss" in r for r in self.records)
        # An evaluation takes all processes.
        self.last_evaluation = start if broadcast_one_to_all(evaluated) else None
        terminal = sys.stderr.isatty()
        self.bar = tqdm(
            initial=start,
            total=options.max_iters,
            unit="step",
            dynamic_ncols=terminal,
            mininterval=0.5 if terminal else LOG_EVERY,
            file=sys.stderr if terminal else Lines(),
            disable=not self.primary,
        )
        self.speed = Speed(options, config, devices)
        self.making_batch = self.speed.making_batch
        self.pending = None  # the step whose metrics are not read yet

    def evaluated(self, iteration: int) -> bool:
        """Tell whether the last evaluation was at that iteration."""
        return iteration == self.last_evaluation

    def step(self, iteration: int, metrics: dict[str, jax.Array], epoch: float | None) -> None:
        """Note a step that has just been started, and read the metrics of the one before it.

        So the device never waits. Raises UserError when the step before diverged.
        """
        self._read_pending()
        # A step on one CPU is done by now: the call that started it did not return before.
        ended = time.perf_counter() if metrics["loss"].is_ready() else None  # ty: ignore[missing-attribute]
        self.pending = iteration, metrics, epoch, ended

    def catch_up(self) -> None:
        """Read the last step's metrics, and keep the time until the next step out of the speed."""
        self._read_pending()
        self.speed.began = None

    def _read_pending(self) -> None:
        if self.pending is None:
            return
        (iteration, metrics, epoch, ended), self.pending = self.pending, None
        values = {name: float(x) for name, x in metrics.items()}  # waits for the step's end
        self.speed.ended(ended or time.perf_counter())
        check_finite(iteration, {name: values[name] for name in ("loss", "grad_norm")})
        self.bar.update()
        if iteration % self.options.log_interval == 0:
            values |= self.speed.figures()
            self._write({"iter": iteration, **values})
            self._show(values, epoch)

    def _show(self, values: dict[str, float], epoch: float | None) -> None:
        """Show a record's values after the bar, the most telling first: a narrow terminal cuts the rest."""
        shown = [
            f"loss {values['loss']:.3f}",
            f"epoch {epoch:.2f}" if epoch is not None else "",
            f"mfu {values['mfu']:.1%}" if "mfu" in values else "",
            f"{values['tokens_per_second']:,.0f} tokens/s",
            f"{values['ms']:.1f} ms/step (data {values['data_ms']:.1f})",
            f"{values['memory_mb']:,.0f} MB",
        ]
        self.bar.set_postfix_str(", ".join(filter(None, shown)), refresh=False)

    def evaluation(self, iteration: int, losses: dict[str, float]) -> None:
        """Record an evaluation. Raises UserError when the model has diverged: it is not one to save."""
        record = {f"{split}/loss": loss for split, loss in losses.items()}
        check_finite(iteration, record)
        self.last_evaluation = iteration
        self._write({"iter": iteration} | record)
        self.say(f"iter {iteration}: " + ", ".join(f"{split} loss {x:.4f}" for split, x in losses.items()))

    def _write(self, record: dict) -> None:
        for sink in self.sinks:
            sink(record)

    def _append(self, record: dict) -> None:
        try:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()  # what a killed run has done stays visible
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}): make room there") from None

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.primary:
            self.bar.write(text)

    def close(self) -> None:
        """End the bar, draw the curves, and compare the last loss with the reference's."""
        self.bar.close()
        if not self.primary:
            return
        if self.wandb is not None:
            self.wandb.finish()
        with suppress(OSError, UserError):  # a full disk has ended the run, which says so
            self.file.close()
            draw(self.records, Path(self.options.out_dir) / "loss.png", self.reference)
        last = self.records[-1] if self.records else {}
        if self.reference and last.get("iter") == self.options.max_iters and "val/loss" in last:
            print(self.reference.verdict(last["val/loss"]))


class Speed:
    """The clock of a run: steps are timed from the end of the one before, and pauses are left out.

    `figures` has, of the steps since its last call: the mean times `ms` of a step and `data_ms` of making its
    batch, while an accelerator computes the step before; `tokens_per_second` over all devices; `memory_mb`,
    the peak of the first device, or of the process on a CPU, in 10^6 bytes; `mfu`, the model's FLOP/s over
    the devices' bfloat16 peak, where that is known and all weights are trained in bfloat16.
    """

    def __init__(self, options: Options, config: GPTConfig, devices: int):
        self.tokens = options.gradient_accumulation_steps * options.batch_size * options.block_size
        known = config.compute.dtype == "bfloat16" and not options.lora_rank
        self.peak = (peak_flops(jax.devices()[0].device_kind) or 0) * devices if known else 0
        self.flops = flops_per_token(config, options.block_size)
        self.steps, self.seconds, self.data_seconds = 0, 0.0, 0.0  # since the last figures
        self.made = deque()  # seconds that each batch took whose step has not ended yet
        self.began = None  # when the step that is next to end began; None in a pause

    @contextmanager
    def making_batch(self) -> Generator[None]:
        """Time what is done within: the batch of the next step is made."""
        start = time.perf_counter()
        if self.began is None:
            self.began = start
        yield
        self.made.append(time.perf_counter() - start)

    def ended(self, when: float) -> None:
        assert self.began is not None, "its batch was made after the pause"
        self.steps += 1
        self.seconds += when - self.began
        self.data_seconds += self.made.popleft()
        self.began = when

    def figures(self) -> dict[str, float]:
        rate = self.steps * self.tokens / self.seconds
        figures = {
            "ms": 1e3 * self.seconds / self.steps,
            "data_ms": 1e3 * self.data_seconds / self.steps,
            "tokens_per_second": rate,
            "memory_mb": peak_memory() / 1e6,
        }
        if self.peak:
            figures["mfu"] = self.flops * rate / self.peak
        self.steps, self.seconds, self.data_seconds = 0, 0.0, 0.0
        return figures


def check_finite(iteration: int, values: dict[str, float]) -> None:
    """Raise UserError for a run that has diverged."""
    if not all(map(math.isfinite, values.values())):
        found = ", ".join(f"{name} is {x}" for name, x in values.items())
        raise UserError(
            f"iter {iteration}: {found}; "
            "checkpoints saved before are kept: resume from the last, with a lower learning_rate"
        )


def read_lines(path: Path) -> list[bytes]:
    """Read the lines of a file that may not be there. Raises UserError."""
    with suppress(*GONE), reading(path), open_file(path) as file:
        content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise UserError(f"{path}: larger than {LONGEST / 2**30:g} GiB: move it away")
        return content.splitlines()
    return []


def records_before(start: int, lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the records of the steps before iteration `start`, and of the evaluations up to it."""
    records = filter(None, map(parse_record, lines)) if start > 0 else ()
    return [record for record in records if record["iter"] < start + ("val/loss" in record)]


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Parse a line of metrics.jsonl; None unless it is an object of finite numbers with an integer `iter`."""
    try:
        record = parse_json(line.decode())
    except ValueError:
        return None
    good = isinstance(record, dict) and is_whole(record.get("iter")) and all(map(is_number, record.values()))
    return record if good else None


def check_wandb(options: Options) -> None:
    """Raise UserError where a run is to log to Weights & Biases and cannot."""
    if options.wandb_log and not options.eval_only and jax.process_index() == 0:
        with wandb_errors():
            import wandb  # here: it takes a second

            wandb.login()  # asks for a key at a terminal, and looks for none where WANDB_MODE needs none


def start_wandb(options: Options, resumed: bool):
    """Start a run at Weights & Biases, or go on with that of a resumed run."""
    import wandb

    path = Path(options.out_dir) / "wandb_id.txt"
    if not (resumed and os.path.lexists(path)):
        write_whole(path, secrets.token_hex(4))
    if (theirs := path.with_name("wandb")).is_symlink():
        raise UserError(f"{theirs}: a link, into which nothing is written: move it away")
    with wandb_errors():
        return wandb.init(
            project=options.wandb_project,
            name=options.wandb_run_name,
            config=options.to_json(),
            dir=options.out_dir,
            id=read_text(path).strip(),
            resume="allow",
        )


@contextmanager
def wandb_errors() -> Generator[None]:
    """Turn what Weights & Biases refuses into a UserError."""
    try:
        yield
    except Exception as error:  # a missing package, a wrong key, a wrong WANDB_ variable
        raise UserError(
            f"wandb_log=True: {first_line(error)}; pip install wandb, run `wandb login`, set "
            "WANDB_MODE=offline to keep the log here, or give --wandb_log=False"
        ) from None


def draw(records: list[dict], path: Path, reference: Reference | None = None) -> None:
    """Draw the loss curves into a PNG file, over the reference's."""
    if not records:
        return
    from matplotlib.figure import Figure  # here: it takes half a second

    axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).subplots()
    for name, label in (("loss", "batch"), ("train/loss", "train"), ("val/loss", "val")):
        if points := [(r["iter"], r[name]) for r in records if name in r]:
            style: dict[str, Any] = {"lw": 0.6, "alpha": 0.5} if name == "loss" else {"marker": "o", "ms": 3}
            axes.plot(*zip(*points, strict=True), label=label, **style)
    if reference:
        reference.draw(axes)
    axes.set(xlabel="iteration", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    with written(path, "make room there") as file:
        figure.savefig(file, format="png", dpi=120)
