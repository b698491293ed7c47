"""Is this loss normal? A run beside five seeds of its config.

    python -m experiments.reference --of=out-mine   says where the run's loss lies, and draws its curve
    python -m experiments.reference                 trains the quickstart's seeds that are missing

Two more configs have such runs: the CPU Shakespeare config, in bfloat16 (precision.py), and best.py's.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from config.command_line import UserError, command
from config.files import read_json, refusing
from config.options import NOT_RESUMED, RESUMING, Options
from experiments import best, precision
from experiments.record import Experiment, Record, data_mark
from experiments.report import draw_curve, draw_means, save_svg, seed_interval
from experiments.runner import run
from runs.metrics import read_records

QUICKSTART = Experiment(
    name="quickstart",
    question="What do runs of the quickstart come to?",
    sets={"as it is": {"eval_interval": 250}},  # the config's 50, for its checkpoints, take longer
    program="reference",
    config="config/quickstart.py",
)
# Options that leave the loss as it is, but for noise. The others say what is learned, and how.
FREE = (
    *NOT_RESUMED,
    *("eval_interval", "log_interval", "eval_iters", "always_save_checkpoint", "keep_checkpoints", "seed"),
    *("wandb_log", "wandb_project", "wandb_run_name", "mesh", "pipeline_schedule", "virtual_stages"),
    *("device", "dtype", "deterministic", "attention", "unroll", "remat"),
)
SOURCES = (
    (precision.EXPERIMENTS[0], "bfloat16"),
    (best.EXPERIMENTS[0], "as it is"),
    (QUICKSTART, "as it is"),
)


def main(argv: list[str]) -> int:
    if argv and argv[0].startswith("--of="):
        return compare(Path(argv[0].removeprefix("--of=")))
    return run([QUICKSTART], argv)


def compare(out_dir: Path) -> int:
    """Say where a run's last validation loss lies, and draw all of them over those of the reference."""
    options = read_options(str(out_dir / "options.json"))
    reference = find_reference(options)
    losses = {r["iter"]: r["val/loss"] for r in read_records(out_dir / "metrics.jsonl") if "val/loss" in r}
    if reference is None or not losses:
        raise UserError(
            f"{out_dir}: no reference has this run's data and options, or it has no evaluation yet"
        )
    record, label = reference

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        draw_curve(axes, record, label)
        draw_means(axes, str(out_dir), pd.DataFrame({"val": losses}))
        axes.set(xlabel="iteration", ylabel="validation loss (nats per token)")
        axes.legend()

    save_svg(out_dir / "reference.svg", fill)
    if (last := max(losses)) < options.max_iters:
        print(f"iter {last} of {options.max_iters}: reference.svg has the curve so far")
    else:
        print(verdict(losses[last], record.losses(label)))
    return 0


def find_reference(options: Options) -> tuple[Record, str] | None:
    """Return the runs with the same data, and the same options as far as they matter to the loss."""
    mark = data_mark(options.dataset)
    for experiment, label in SOURCES if options.init_from in ("scratch", *RESUMING) else ():
        record = Record(experiment)
        read = {run.get("data") for run in record.runs(label)}
        if read == {mark} and mattering(record.options[label]) == mattering(vars(options)):
            return record, label
    return None


def read_options(path: str) -> Options:
    """Read a run's `options.json`. Raises UserError."""
    with refusing(f"{path}: cannot be read as options", "put back what it was", ValueError):
        return Options.from_json(read_json(Path(path)), origin=path)


def mattering(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that matter to the loss and are not the defaults."""
    return {name: x for name, x in values.items() if name not in FREE and x != getattr(Options, name)}


def verdict(loss: float, others: pd.Series) -> str:
    """Say where the validation loss at the end of a run lies among those of other seeds."""
    mean, within = others.mean(), seed_interval(others)
    side = "higher than normal" if loss > mean else "lower than normal"
    where = "normal" if abs(loss - mean) <= within else side
    return (
        f"val loss {loss:.4f}; {len(others)} reference runs: {mean:.4f} ± {others.std():.4f}: {where} "
        f"(19 of 20 seeds end within ± {within:.4f})"
    )


if __name__ == "__main__":
    command(main)
