"""Hold the planner against runs that others have published, and fit how fast devices really are.

    python -m tools.planning.published                plan the runs that are new, fit, and write the results

published.json has the runs (tools/planning/evidence.py). planned.json keeps what a step asks of its device,
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
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from config.command_line import UserError, command
from config.files import read_json, write_whole
from data.dataset import load_meta
from tools.planning.evidence import FOLDER, STACKS, Run, read_runs
from tools.planning.fit import count_by_depth
from tools.planning.speeds import AT_BEST, COVERED, Shares, Speeds, Work
from tools.planning.target import prepare_to_compile

# Before a run is seen, shares are believed to be as at best, up to a factor of e^(this) either way.
PRIOR = Shares(products=0.4, memory=0.4, network=0.7, kernel=0.7, message=1.5, hidden=0.5, balance=0.3)
PRIOR_OF_STACK = 0.3
NOISE = 0.15  # of the logarithm of a published time
START = -0.5  # of a PRIOR: on the bounds themselves, where nothing is known, a fit would not move


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
        return self.stacks[run.stack] * Speeds.of(device, self.shares[device.family]).step(works)


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
