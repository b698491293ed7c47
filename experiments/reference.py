"""Is this loss normal? A run beside five seeds of its config: python -m experiments.reference --of=out-mine

It says where the run's last loss lies among theirs, and draws its curve over them. Three configs have such
runs: the quickstart, the CPU Shakespeare config in bfloat16, and the best one.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import UserError, command
from common.files import read_json, refusing
from config.options import NOT_RESUMED, RESUMING, Options
from experiments.record import RESULTS, Record, Result, data_mark, not_defaults
from experiments.report import save_svg
from experiments.statistics import critical
from runs.metrics import read_records

# Options that leave the loss as it is, but for noise. The others say what is learned, and how.
FREE = (
    *NOT_RESUMED,
    *("eval_interval", "log_interval", "eval_iters", "always_save_checkpoint", "keep_checkpoints", "seed"),
    *("wandb_log", "wandb_project", "wandb_run_name", "mesh", "pipeline_schedule", "virtual_stages"),
    *("device", "dtype", "deterministic", "attention", "unroll", "remat"),
)
SOURCES = {"quickstart": "as it is", "precision": "bfloat16", "best": "as it is"}  # sets of results


def main(argv: list[str]) -> None:
    """Say where a run's last validation loss lies, and draw all of them over those of the reference."""
    if len(argv) != 1 or not argv[0].startswith("--of="):
        raise UserError("give the run's folder: --of=out-mine")
    out_dir = Path(argv[0].removeprefix("--of="))
    options = read_options(str(out_dir / "options.json"))
    losses = {r["iter"]: r["val/loss"] for r in read_records(out_dir / "metrics.jsonl") if "val/loss" in r}
    runs = find_runs(vars(options)) if options.init_from in ("scratch", *RESUMING) else []
    if not losses or not runs or {run.data for run in runs} != {data_mark(options.dataset)}:
        raise UserError(f"{out_dir}: it has no evaluation, or no reference has its data and options")

    def draw(axes: Any) -> None:
        for run in runs:
            steps, _, others = zip(*run.evaluations, strict=True)
            axes.plot(steps, others, lw=1, color="gray", label="reference" if run is runs[0] else None)
        axes.plot(list(losses), list(losses.values()), "o-", ms=4, label=str(out_dir))
        axes.set(xlabel="iteration", ylabel="validation loss (nats per token)")
        axes.legend()

    save_svg(out_dir / "reference.svg", draw)
    if (last := max(losses)) < options.max_iters:
        print(f"iter {last} of {options.max_iters}: reference.svg has the curve so far")
    else:
        print(verdict(losses[last], pd.Series([run.val for run in runs])))


def find_runs(options: dict[str, Any]) -> list[Result]:
    """Return the runs, on any data, with the same options as far as they matter to the loss."""
    for name, label in SOURCES.items():
        entry = Record(RESULTS / f"{name}.json").sets[label]
        if not_defaults(entry.options, FREE) == not_defaults(options, FREE):
            return entry.runs
    return []


def read_options(path: str) -> Options:
    """Read a run's `options.json`. Raises UserError."""
    with refusing(f"{path}: cannot be read as options", "put back what it was", ValueError):
        return Options.from_json(read_json(Path(path)), origin=path)


def verdict(loss: float, others: pd.Series) -> str:
    """Say where the validation loss at the end of a run lies among those of other seeds."""
    mean, within = others.mean(), critical(len(others)) * others.sem() * (len(others) + 1) ** 0.5
    where = "normal" if abs(loss - mean) <= within else f"{'higher' if loss > mean else 'lower'} than normal"
    seeds = f"{len(others)} reference runs: {mean:.4f} ± {others.std():.4f}"
    return f"val loss {loss:.4f}; {seeds}: {where} (19 of 20 seeds end within ± {within:.4f})"


if __name__ == "__main__":
    command(main)
