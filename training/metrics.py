"""What a person sees of a run: the progress bar, metrics.jsonl, loss.png and Weights & Biases."""

import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path

import jax
from jax.experimental.multihost_utils import broadcast_one_to_all
from tqdm import tqdm

from config.options import Options, UserError


class Metrics:
    """The records of a run. `metrics.jsonl` holds one JSON object per logged step and per evaluation.

    A record of a step has `iter`, `loss`, `lr`, `grad_norm`, `ms` (a step, averaged since the record before
    it) and `tokens_per_second`; one of an evaluation `iter`, `train/loss` and `val/loss`. A run resumed at
    iteration `start` drops the records of steps that it will do again.
    """

    def __init__(self, options: Options, start: int):
        self.options = options
        self.path = Path(options.out_dir) / "metrics.jsonl"
        self.primary = jax.process_index() == 0
        self.records = []
        self.file = None
        if self.primary:
            if start > 0:
                self.records = [r for r in read_records(self.path) if r["iter"] < start + ("val/loss" in r)]
            write_whole(self.path, "".join(json.dumps(record) + "\n" for record in self.records))
            self.file = open(self.path, "a", encoding="utf-8")
        evaluated = any(r["iter"] == start and "val/loss" in r for r in self.records)
        # All processes evaluate, or none does: one alone would wait for the others without an end.
        self.last_evaluation = start if broadcast_one_to_all(evaluated) else None
        self.bar = tqdm(
            initial=start,
            total=options.max_iters,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5,
            disable=not self.primary,
        )
        self.wandb = start_wandb(options) if options.wandb_log and self.primary else None
        self.pending = None  # the step whose metrics are not read yet: (iteration, metrics, epoch)
        self.clock = None  # (iteration, time) of the first step that the next record's speed covers

    def evaluated(self, iteration: int) -> bool:
        return iteration == self.last_evaluation

    def step(self, iteration: int, metrics: dict, epoch: float | None) -> None:
        """Take note of a step that has just been started, and read the metrics of the one before it.

        So the device is never kept waiting. Raises UserError when the step before diverged.
        """
        if self.clock is None:
            self.clock = (iteration, time.perf_counter())
        self.read_pending()
        self.pending = (iteration, metrics, epoch)

    def catch_up(self) -> None:
        """Read what is still to be read, and keep what follows, which is no step, out of the speed."""
        self.read_pending()
        self.clock = None

    def read_pending(self) -> None:
        if self.pending is None:
            return
        (iteration, metrics, epoch), self.pending = self.pending, None
        values = {name: float(x) for name, x in metrics.items()}  # waits for the step's end
        if not (math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"])):
            raise diverged(
                iteration, f"the loss is {values['loss']}, the gradient's norm {values['grad_norm']}"
            )
        self.bar.update()
        if iteration % self.options.log_interval == 0:
            values |= self.speed(iteration)
            self.write({"iter": iteration, **values})
            shown = {"loss": f"{values['loss']:.3f}", "ms/step": f"{values['ms']:.1f}"}
            shown["tokens/s"] = f"{values['tokens_per_second']:,.0f}"
            if epoch is not None:
                shown["epoch"] = f"{epoch:.2f}"
            self.bar.set_postfix(shown, refresh=False)

    def speed(self, iteration: int) -> dict[str, float]:
        """Mean time per step since the last record."""
        (first, then), now = self.clock, time.perf_counter()
        self.clock = (iteration + 1, now)
        seconds = (now - then) / (iteration + 1 - first)
        o = self.options
        tokens = o.gradient_accumulation_steps * o.batch_size * o.block_size
        return {"ms": 1000 * seconds, "tokens_per_second": tokens / seconds}

    def evaluation(self, iteration: int, losses: dict[str, float]) -> None:
        """Record an evaluation. Raises UserError when the model has diverged: it is not one to save."""
        if not all(map(math.isfinite, losses.values())):
            raise diverged(iteration, ", ".join(f"the {split} loss is {x}" for split, x in losses.items()))
        self.last_evaluation = iteration
        self.write({"iter": iteration, **{f"{split}/loss": loss for split, loss in losses.items()}})
        self.say(f"iter {iteration}: " + ", ".join(f"{split} loss {x:.4f}" for split, x in losses.items()))

    def write(self, record: dict) -> None:
        if not self.primary:
            return
        self.records.append(record)
        try:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()  # what a killed run has done stays visible
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}): make room there, then --init_from=resume"
            ) from None
        if self.wandb is not None:
            self.wandb.log(record, step=record["iter"])

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.primary:
            self.bar.write(text)

    def close(self) -> None:
        """End the bar and draw the curves."""
        self.bar.close()
        if not self.primary:
            return
        if self.wandb is not None:
            self.wandb.finish()
        with suppress(OSError):  # of a full disk; the error that ended the run says so
            self.file.close()
            draw(self.records, Path(self.options.out_dir) / "loss.png")


def diverged(iteration: int, found: str) -> UserError:
    return UserError(
        f"iter {iteration}: {found}; "
        "checkpoints saved before are kept: resume from the last, with a lower learning_rate"
    )


def read_records(path: Path) -> list[dict]:
    """The records of a metrics.jsonl; none without one. A killed run may have left half a last line."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place, then rename it there. Raises UserError when that cannot be done."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): choose another --out_dir") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def start_wandb(options: Options):
    try:
        import wandb  # here, because few runs ask for it and it takes a second to import
    except ImportError:
        raise UserError("wandb_log=True needs wandb: pip install wandb, or drop the option") from None
    return wandb.init(
        project=options.wandb_project,
        name=options.wandb_run_name,
        config=options.to_json(),
        dir=options.out_dir,
    )


def draw(records: list[dict], path: Path) -> None:
    """The loss curves, as a picture."""
    if not records:
        return
    from matplotlib.figure import Figure  # here, because it takes half a second and is needed at the end only

    axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).subplots()
    for name, label in (("loss", "batch"), ("train/loss", "train"), ("val/loss", "val")):
        points = [(r["iter"], r[name]) for r in records if name in r]
        if points:
            style = {"lw": 0.6, "alpha": 0.5} if name == "loss" else {"marker": "o", "ms": 3}
            axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.set(xlabel="iteration", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", dpi=120)
    os.replace(temporary, path)
