"""Hold the planner against runs that others have published, and fit how fast devices really are.

    python -m tools.planning.published                plan the runs that are new, fit, and write the results

published.json has the runs (tools/planning/evidence.py). planned.json keeps what a step asks of its device,
until the run changes. fitted.json has the results, which plan.py reads, and published.md the table.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from config.command_line import UserError, command
from config.files import read_json, write_whole
from config.options import Options
from data.dataset import load_meta
from parallel.mesh import parse
from tools.planning.evidence import FOLDER, STACKS, Run, read_runs
from tools.planning.expected import COVERED
from tools.planning.fit import count_parameters, plan
from tools.planning.speeds import AT_BEST, Shares, Speeds, Work, step_seconds
from tools.planning.target import prepare_to_compile
from training import recipe
from training.state import model_config

# Before a run is seen, shares are believed to be as at best, up to a factor of e^(this) either way.
PRIOR = dict(
    products=0.4, memory=0.4, network=0.7, kernel=0.7, message=1.5, hidden=0.5, balance=0.3, stack=0.3
)
NOISE = 0.15  # of the logarithm of a published time


# Works: compile the steps


def works_of(run: Run) -> Work:
    """Compile the step of a run, and return what it asks of the device."""
    options = run.all_options
    shallowest = max(2, parse(options.mesh, run.target.count)["stage"])
    depths = [shallowest, 2 * shallowest]
    if options.n_layer <= depths[-1]:
        return compiled(run, options)
    # A step's work grows by the same for each layer: two shallow ones compile in a fraction of the time.
    share = (options.n_layer - depths[0]) / (depths[1] - depths[0])
    shallow, deeper = (compiled(run, replace(options, n_layer=depth)) for depth in depths)
    times = np.concatenate([(1 - share) * shallow.times, share * deeper.times])
    return Work(times, *(np.concatenate(pair) for pair in zip(shallow[1:], deeper[1:], strict=True)))


def compiled(run: Run, options: Options) -> Work:
    # Whether weights are gathered once a step depends on the size of the model: of the deep one.
    small = model_config(options, options.vocab_size or 0)
    fraction = recipe.GATHERED_FRACTION * count_parameters(small) / count_parameters(run.config)
    with patch.object(recipe, "GATHERED_FRACTION", fraction):
        planned = plan(options, run.target, load_meta(options.dataset, options.vocab_size))
    if planned.cost is None:
        raise UserError(f"published run {run.id}: XLA has too little memory for its step")
    return planned.cost.works


def all_works(runs: list[Run], path: Path = FOLDER / "planned.json") -> dict[str, Work]:
    """Return the work of each run's step, which planned.json keeps. Says which runs it compiles."""
    kept = read_json(path) if path.exists() else {}
    found = {}
    for run in runs:
        key = hashlib.sha256(json.dumps([run.on, run.options], sort_keys=True).encode()).hexdigest()[:12]
        if kept.get(run.id, {}).get("key") != key:
            print(f"planning {run.id}", flush=True)
            kept[run.id] = {"key": key, "jax": jax.__version__, "works": merged(works_of(run))}
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


# The fit


@dataclass(frozen=True)
class Fitted:
    """How fast devices really are."""

    shares: dict[str, Shares]  # of a gpu, and of a tpu
    stacks: dict[str, float]  # the time of this software's steps, beside XLA's

    def predict(self, runs: list[Run], works: dict[str, Work]) -> Any:
        """Return the seconds of a step of each run."""
        speeds = [Speeds.of(x.target.device, self.shares[kind_of(x)]) for x in runs]
        counts = [len(works[x.id].times) for x in runs]
        together = Work(*(np.concatenate(x) for x in zip(*(works[run.id] for run in runs), strict=True)))

        def each(name: str) -> Any:
            return np.repeat([getattr(x, name) for x in speeds], counts)

        def curve(name: str) -> Any:
            return ((1.0, np.repeat([getattr(x, name)[0][1] for x in speeds], counts)),)

        all_speeds = Speeds(
            *(curve("bfloat16"), curve("float32"), curve("memory")),
            *(each("link"), each("between_hosts"), each("kernel"), each("message")),
            hidden=np.array([x.hidden for x in speeds]),  # ty: ignore[invalid-argument-type]: one for each step
        )
        factors = np.array([self.stacks[run.stack] for run in runs])
        return factors * step_seconds(together, all_speeds, np.cumsum([0, *counts[:-1]]))


def kind_of(run: Run) -> str:
    return "gpu" if run.target.device.is_gpu else "tpu"


def source_of(run: Run) -> str:
    return run.by


def device_of(run: Run) -> str:
    return run.target.device.name


def fit(runs: list[Run], works: dict[str, Work]) -> Fitted:
    """Find the most probable parameters after these runs. n runs of one source weigh as √n."""
    names = [
        (kind, name)
        for kind, best in AT_BEST.items()
        for name, value in asdict(best).items()
        if name in PRIOR and (value or name == "balance")
    ]
    weights = np.array([sum(x.by == run.by for x in runs) ** -0.25 for run in runs])
    published = np.array([run.seconds for run in runs])
    sigmas = np.array([*(PRIOR[name] for _, name in names), *(PRIOR["stack"] for _ in STACKS[1:])])

    def fitted(x: np.ndarray) -> Fitted:
        found = {kind: asdict(best) for kind, best in AT_BEST.items()}
        for (kind, name), step in zip(names, x, strict=False):
            best = found[kind][name]
            found[kind][name] = step if name == "balance" else min(np.exp(step) * best, 1.0)
        shares = {kind: Shares(**values) for kind, values in found.items()}
        return Fitted(shares, dict(zip(STACKS, np.exp([0.0, *x[len(names) :]]), strict=True)))

    def residuals(x: np.ndarray) -> np.ndarray:
        logs = np.log(fitted(x).predict(runs, works) / published)
        return np.concatenate([weights * logs / NOISE, x / sigmas])

    return fitted(least_squares(residuals, np.zeros(len(sigmas)), loss="soft_l1", xtol=1e-3, ftol=1e-3).x)


def left_out(runs: list[Run], works: dict[str, Work], group: Callable[[Run], str]) -> dict[str, float]:
    """Return the logarithm of published / predicted of each run, by a fit that saw no run of its group."""
    errors = {}
    for name in dict.fromkeys(map(group, runs)):
        found = fit([run for run in runs if run.fits and group(run) != name], works)
        unseen = [run for run in runs if group(run) == name]
        for run, predicted in zip(unseen, found.predict(unseen, works), strict=True):
            errors[run.id] = float(np.log(run.seconds / predicted))
    return errors


def interval(runs: list[Run], errors: dict[str, float]) -> tuple[float, float]:
    """Return the factors between which COVERED of the runs lie, each source weighing as its root."""
    values = np.array([errors[run.id] for run in runs])
    weights = np.array([sum(x.by == run.by for x in runs) ** -0.5 for run in runs])
    order = np.argsort(values)
    shares = np.cumsum(weights[order]) / weights.sum()
    low, high = np.interp([(1 - COVERED) / 2, (1 + COVERED) / 2], shares, values[order])
    return float(np.exp(low)), float(np.exp(high))


def covered(runs: list[Run], errors: dict[str, float]) -> float:
    """Return the share of runs within an interval that was made without their source."""
    within = 0
    for source in dict.fromkeys(run.by for run in runs):
        low, high = interval([run for run in runs if run.by != source], errors)
        within += sum(low <= np.exp(errors[run.id]) <= high for run in runs if run.by == source)
    return within / len(runs)


# Results


def results(runs: list[Run], works: dict[str, Work]) -> dict[str, Any]:
    """Return what plan.py and the pages need."""
    errors, alike = left_out(runs, works, source_of), [run for run in runs if run.fits]
    found = fit(alike, works)
    ratios = {run.id: float(np.exp(-errors[run.id])) for run in runs}  # predicted / published
    return {
        "shares": {kind: asdict(shares) for kind, shares in found.shares.items()},
        "stacks": found.stacks,
        "interval": interval(alike, errors),
        "interval_of_others": interval(alike, left_out(runs, works, device_of)),
        "median_error": float(np.median([abs(ratios[run.id] - 1) for run in alike])),
        "covered": covered(alike, errors),
        "order": {name: order_of(runs, ratios, name) for name in sweeps(runs)},
        "evidence": {
            name: {"runs": len(group), "sources": sorted({run.by for run in group})}
            for name in dict.fromkeys(map(device_of, alike))
            if (group := [run for run in alike if device_of(run) == name])
        },
        "runs": {x.id: {"published": x.seconds, "predicted": x.seconds * ratios[x.id]} for x in runs},
    }


def sweeps(runs: list[Run]) -> list[str]:
    """Return the names of the sweeps of at least five meshes."""
    names = [run.sweep for run in runs if run.sweep]
    return sorted({name for name in names if names.count(name) >= 5})


def order_of(runs: list[Run], ratios: dict[str, float], sweep: str) -> float:
    """Return Spearman's rank correlation of predicted and published seconds over the meshes of a sweep."""
    times = [(run.seconds, run.seconds * ratios[run.id]) for run in runs if run.sweep == sweep]
    return float(spearmanr(*zip(*times, strict=True)).statistic)


def table(runs: list[Run], found: dict[str, Any]) -> str:
    """Format the runs, predicted without their source."""
    lines = [
        "# Published runs beside predictions\n",
        "Written by `python -m tools.planning.published`. A prediction is of a fit that saw no run of its "
        "source.\n",
        "| run | devices | software | published, s a step | predicted | predicted / published |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        published, predicted = found["runs"][run.id].values()
        lines.append(
            f"| [{run.id}]({run.source}) | {run.on} | {run.software} | {published:.4g} | {predicted:.4g} "
            f"| {predicted / published:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> None:
    if argv:
        print(__doc__)
        raise UserError(f"unknown argument {argv[0]!r}: it takes none")
    # Products by cuBLAS, not Triton: the steps compile in half the time, and plans differ by 1%.
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
    prepare_to_compile()
    runs = read_runs()
    found = results(runs, all_works(runs))
    write_whole(FOLDER / "fitted.json", json.dumps(found, indent=1) + "\n")
    write_whole(FOLDER / "published.md", table(runs, found))
    low, high = found["interval"]
    print(
        f"{len(runs)} runs of {len({run.by for run in runs})} sources, each left out in turn: "
        f"median error {found['median_error']:.0%}; {found['covered']:.0%} within the interval, "
        f"{low:.2f} to {high:.2f} times the prediction"
    )


if __name__ == "__main__":
    command(main)
