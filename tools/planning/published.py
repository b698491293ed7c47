"""Hold the planner against runs that others have published, and fit how fast devices really are.

    python -m tools.planning.published                plan the runs that are new, fit, and write the results

published.json has the runs, each with its source. planned.json keeps what a step asks of its device,
until the run changes. fitted.json has the results, which plan.py reads, and published.csv a table: seconds
of a step, predicted by a fit that saw no run of the same source.
"""

import hashlib
import json
import math
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import jax
import numpy as np
import pandas as pd
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from common.command_line import Positive, first_problem, matching
from common.errors import UserError, command
from common.files import read_json, write_whole
from config.options import Options
from data.dataset import load_meta
from model import GPTConfig
from runs.metrics import count_parameters, flops_per_token
from tools.planning.fit import count_by_depth
from tools.planning.speeds import AT_BEST, COVERED, Shares, Speeds, Work, family_of
from tools.planning.target import Target, parse_target, prepare_to_compile
from training.state import model_config

FOLDER = Path(__file__).parent
AGREE = 0.03  # figures of one run may differ by as much

Text = Annotated[str, matching(".+", "a text")]
Stack = Literal["XLA", "compiled", "eager", "CUDA", "Megatron"]  # software with kernels of one kind
STACKS = get_args(Stack)

# Before a run is seen, shares are believed to be as at best, up to a factor of e^(this) either way.
PRIOR = Shares(products=0.4, memory=0.4, network=0.7, kernel=0.7, message=1.5, hidden=0.5, balance=0.3)
PRIOR_OF_STACK = 0.3
NOISE = 0.15  # of the logarithm of a published time
START = -0.5  # of a PRIOR: on the bounds themselves, where nothing is known, a fit would not move


class Run(BaseModel, frozen=True, extra="forbid"):
    id: Text
    by: Text  # who published it; errors are given with all runs of one left out
    source: Annotated[str, matching("https?://.+", "a link")]
    place: Text  # of the figure in the source
    date: Annotated[str, matching(r"20\d\d(-\d\d){0,2}", "a date, as 2024-05-01")]
    on: Text  # the devices, as plan.py's --on
    software: Text
    stack: Stack
    options: dict[str, Any]  # of the nearest step that we can plan
    published: Annotated[dict[str, Positive], Field(min_length=1)]  # figures as the source has them
    assumed: list[Text]
    differs: list[Text]  # from that step
    flops: Literal["6N", "6N+12LHQT", "6n+12LHQT"] = "6N"  # what the source counts as a token's FLOPs
    peak: Positive = 1.0  # TFLOP/s that the source takes for 100%
    definition: str = ""  # of the source's MFU, in words
    sweep: str = ""  # the name of runs that differ in their mesh alone
    fits: bool = True  # False: our step does other work, and the run counts for the order of its sweep alone

    @model_validator(mode="after")
    def agrees(self) -> Self:
        seconds = self.implied_seconds()
        if max(seconds.values()) > (1 + AGREE) * min(seconds.values()):
            each = ", ".join(f"{name}={self.published[name]} {s:.4g}" for name, s in seconds.items())
            raise UserError(f"published run {self.id}: figures of different seconds a step: {each}")
        return self

    @cached_property
    def target(self) -> Target:
        return parse_target(self.on)

    @cached_property
    def all_options(self) -> Options:
        given = {"vocab_size": "missing"} | self.options
        return Options.from_json(vars(Options()) | given, f"published run {self.id}")

    @cached_property
    def config(self) -> GPTConfig:
        return model_config(self.all_options, self.options["vocab_size"])

    @property
    def seconds(self) -> float:
        """Seconds of a step, by the first of its figures."""
        return next(iter(self.implied_seconds().values()))

    def implied_seconds(self) -> dict[str, float]:
        """Return the seconds of a step that each figure stands for. Raises UserError for an unknown one."""
        options, count = self.all_options, self.target.count
        tokens = options.tokens_per_step
        teraflops = tokens * self.flops_per_token() / (1e12 * count)  # of a device
        of = {
            "seconds_per_step": lambda x: x,
            "tokens_per_second": lambda x: tokens / x,
            "tokens_per_second_per_device": lambda x: tokens / x / count,
            "sequences_per_second": lambda x: tokens / options.block_size / x,
            "tflops_per_second_per_device": lambda x: teraflops / x,
            "mfu": lambda x: teraflops / (x * self.peak),
        }
        if unknown := self.published.keys() - of.keys():
            raise UserError(f"published run {self.id}: figures are {', '.join(of)}, not {', '.join(unknown)}")
        return {name: of[name](self.published[name]) for name in of if name in self.published}

    def flops_per_token(self) -> float:
        """Return a token's FLOPs as the source counts them: n leaves out the embedding of the input."""
        if self.flops == "6n+12LHQT":
            return flops_per_token(self.config, self.config.block_size)
        attention = 12 * self.config.n_layer * self.config.n_embd * self.config.block_size
        return 6 * count_parameters(self.config) + (attention if self.flops == "6N+12LHQT" else 0)


def read_runs(path: Path = FOLDER / "published.json") -> list[Run]:
    """Read the published runs. Raises UserError for one that lacks a source or contradicts itself."""
    try:
        return TypeAdapter(list[Run]).validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}") from None


def all_works(runs: list[Run], path: Path = FOLDER / "planned.json") -> dict[str, Work]:
    """Return the work of each run's step, which planned.json keeps. Says which runs it compiles."""
    kept = read_json(path) if path.exists() else {}
    found = {}
    for run in runs:
        key = hashlib.sha256(json.dumps([run.on, run.options], sort_keys=True).encode()).hexdigest()[:12]
        if kept.get(run.id, {}).get("key") != key:
            print(f"planning {run.id}", flush=True)
            options = run.all_options
            meta = load_meta(options.dataset, options.vocab_size)
            works, _ = count_by_depth(options, run.target, meta)
            kept[run.id] = {"key": key, "jax": jax.__version__, "works": merged(works)}
            lines = ",\n".join(f'"{id}": {json.dumps(x)}' for id, x in kept.items())
            write_whole(path, f"{{\n{lines}\n}}\n")
        found[run.id] = Work(*np.array(kept[run.id]["works"]).T)
    return found


def merged(works: Work) -> list[list[float]]:
    """Return rows of numbers, in which operations that ask for the same, to three digits, are one."""
    rows: dict[tuple, float] = {}
    for times, *rest in zip(*works, strict=True):
        key = tuple(float(f"{float(x):.3g}") for x in rest)
        rows[key] = rows.get(key, 0.0) + float(times)
    return [[float(f"{times:.5g}"), *key] for key, times in rows.items() if times]


@dataclass(frozen=True)
class Fitted:
    shares: dict[str, Shares]  # of a gpu, and of a tpu
    stacks: dict[str, float]  # the time of this software's steps, beside XLA's

    def predict(self, run: Run, works: Work) -> float:
        """Return the seconds of a step of a run."""
        device = run.target.device
        return self.stacks[run.stack] * Speeds.of(device, self.shares[family_of(device)]).step(works)


def fit(runs: list[Run], works: dict[str, Work]) -> Fitted:
    """Find the most probable parameters after these runs. n runs of one source weigh as √n.

    A parameter is a step from the best: of a share's logarithm, at most to 1, or of an exponent.
    """
    weights = np.array([sum(x.by == run.by for x in runs) ** -0.25 for run in runs])
    published = np.array([run.seconds for run in runs])
    sigmas = np.array([*PRIOR * len(AT_BEST), *(PRIOR_OF_STACK for _ in STACKS[1:])])

    def fitted(steps: np.ndarray) -> Fitted:
        *families, stacks = np.split(steps, len(PRIOR) * np.arange(1, 1 + len(AT_BEST)))
        shares = {
            family: Shares(*best * np.exp(step))._replace(balance=step[-1])
            for (family, best), step in zip(AT_BEST.items(), families, strict=True)
        }
        return Fitted(shares, dict(zip(STACKS, np.exp([0.0, *stacks]), strict=True)))

    def residuals(steps: np.ndarray) -> np.ndarray:
        found = fitted(steps)
        logs = np.log([found.predict(run, works[run.id]) for run in runs] / published)
        return np.concatenate([weights * logs / NOISE, steps / sigmas])

    with np.errstate(divide="ignore"):  # what is 0 at best has no bound
        shares = -np.log(np.concatenate(list(AT_BEST.values())))
    bounds = -np.inf, np.concatenate([shares, np.full(len(STACKS) - 1, np.inf)])
    return fitted(least_squares(residuals, START * sigmas, bounds=bounds, loss="soft_l1").x)


def left_out(runs: list[Run], works: dict[str, Work], group: Callable[[Run], str]) -> list[float]:
    """Return the logarithm of published / predicted of each run, by a fit that saw no run of its group."""
    fits = {
        name: fit([run for run in runs if run.fits and group(run) != name], works)
        for name in dict.fromkeys(map(group, runs))
    }
    predicted = [fits[group(run)].predict(run, works[run.id]) for run in runs]
    return [math.log(run.seconds / seconds) for run, seconds in zip(runs, predicted, strict=True)]


def interval(errors: pd.DataFrame) -> tuple[float, float]:
    """Return the factors between which COVERED of the runs lie, each source weighing as its root."""
    errors = errors.sort_values("error")
    weights = errors.groupby("by")["by"].transform("size") ** -0.5
    ends = (1 - COVERED) / 2, (1 + COVERED) / 2
    low, high = np.exp(np.interp(ends, weights.cumsum() / weights.sum(), errors["error"]))
    return float(low), float(high)


def covered(errors: pd.DataFrame) -> float:
    """Return the share of runs within an interval that was made without their source."""
    within = 0
    for source, group in errors.groupby("by"):
        within += np.exp(group["error"]).between(*interval(errors[errors["by"] != source])).sum()
    return within / len(errors)


def compare(runs: list[Run], works: dict[str, Work]) -> pd.DataFrame:
    """Hold each run's seconds against fits without its source, and without its device."""
    device = operator.attrgetter("target.device.name")
    columns = ["id", "by", "source", "on", "software", "sweep", "fits"]
    table = pd.DataFrame([{name: getattr(run, name) for name in columns} for run in runs]).set_index("id")
    table["device"] = list(map(device, runs))
    table["published"] = [run.seconds for run in runs]
    table["error"] = left_out(runs, works, operator.attrgetter("by"))
    table["error_without_device"] = left_out(runs, works, device)
    table["predicted"] = table["published"] / np.exp(table["error"])
    return table


def results(runs: list[Run], works: dict[str, Work], table: pd.DataFrame) -> dict[str, Any]:
    """Return what plan.py needs, and how well it is known."""
    found = fit([run for run in runs if run.fits], works)
    alike = table[table["fits"]]
    sweeps = [(name, group) for name, group in table.groupby("sweep") if name and len(group) >= 5]
    return {
        "shares": {family: shares._asdict() for family, shares in found.shares.items()},
        "stacks": found.stacks,
        "interval": interval(alike),
        "interval_of_others": interval(alike.assign(error=alike["error_without_device"])),
        "median_error": float((alike["predicted"] / alike["published"] - 1).abs().median()),
        "covered": covered(alike),
        "order": {name: float(spearmanr(x["published"], x["predicted"]).statistic) for name, x in sweeps},
        "evidence": {
            name: {"runs": len(group), "sources": sorted(set(group["by"]))}
            for name, group in alike.groupby("device", sort=False)
        },
    }


def main(argv: list[str]) -> None:
    if argv:
        print(__doc__)
        raise UserError(f"unknown argument {argv[0]!r}: it takes none")
    # Products by cuBLAS, not Triton: the steps compile in half the time, and plans differ by 1%.
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
    prepare_to_compile()
    runs = read_runs()
    works = all_works(runs)
    table = compare(runs, works)
    found = results(runs, works, table)
    write_whole(FOLDER / "fitted.json", json.dumps(found, indent=1) + "\n")
    shown = ["on", "software", "published", "predicted", "fits", "source"]
    write_whole(FOLDER / "published.csv", table[shown].to_csv(float_format="%.4g"))
    low, high = found["interval"]
    print(
        f"{table['fits'].sum()} of {len(runs)} runs, each source left out in turn: "
        f"median error {found['median_error']:.0%}; {found['covered']:.0%} within the interval, "
        f"{low:.2f} to {high:.2f} times the prediction"
    )


if __name__ == "__main__":
    command(main)
