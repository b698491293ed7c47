"""How large are activations, by width, over the first steps? The coordinate check of µP.

In µP (arXiv:2203.03466, appendix D.1) a coordinate of the stream, of what attention and MLP add to it, and of
the logits is as large in a wide model as in a narrow one, also after a few steps at one learning rate for
all. In the standard parametrisation some grow with the width, which is why the best rate falls.

    python -m experiments.coordinate_check              measure what is missing; then the table and the plot
    python -m experiments.coordinate_check --draw       the table and the plot of what is there

The runs are too short to keep: a few steps of each width, in this process.
"""

import itertools
import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import equinox as eqx
import jax
import numpy as np

from config.command_line import ScriptParser, UserError, command
from config.files import read_json, write_whole
from config.options import Options
from data.meta import load_meta
from data.registry import prepare_if_missing
from data.token_files import Dataset
from experiments.learning_rate import KINDS, WIDTHS
from experiments.record import machine
from experiments.report import save_svg
from experiments.runner import RESULTS
from model import GPT
from parallel.batches import StepBatches
from parallel.mesh import make_mesh
from runs.hardware import choose_device, keep_compiled_programs
from tools.inside.views import lens
from training.recipe import compile_step
from training.state import create_state, model_config

STEPS, SEEDS, RATE = 10, 5, 2e-3
PARTS = ("stream", "attention", "mlp", "logits")
PATH = RESULTS / "coordinate_check.json"


def main(argv: list[str]) -> None:
    parser = ScriptParser(__doc__)
    parser.add_argument("--draw", action="store_true", help="the table and the plot of what is there")
    if not parser.parse(argv).draw:
        measure_all(PATH)
    if not PATH.exists():
        raise UserError(f"{PATH}: nothing is measured yet: run it without --draw")
    found = read_found(PATH)
    write_whole(PATH.with_suffix(".md"), table(found), "make room there")
    save_svg(PATH.with_suffix(".svg"), "coordinate_check", lambda figure: draw(figure, found))
    print(f"the table: {PATH.with_suffix('.md')}")


def read_found(path: Path) -> dict[str, Any]:
    """Read what was measured. Raises UserError."""
    try:
        return read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as results ({error}): git checkout restores it") from None


def measure_all(path: Path) -> None:
    """Measure the widths of each kind that are not measured yet, and write what was found after each."""
    keep_compiled_programs()  # which a seed does not change
    choose_device("auto")
    runs = read_found(path)["runs"] if path.exists() else []
    done = {(run["kind"], run["width"]) for run in runs}
    with jax.set_mesh(make_mesh("data:1")):
        for kind, width in itertools.product(KINDS, WIDTHS):
            if (kind, width) in done:
                continue
            for seed in range(1, SEEDS + 1):
                sizes = measure(KINDS[kind] | {"n_embd": width, "n_head": 4, "seed": seed})
                runs.append({"kind": kind, "width": width, "seed": seed, "sizes": sizes})
            lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
            text = f'{{"made": {json.dumps(machine())},\n"runs": [\n{lines}\n]}}\n'
            write_whole(path, text, "make room there")
            print(f"{kind}, width {width}: measured", flush=True)


def measure(own: dict[str, Any]) -> list[list[float]]:
    """Return the size of a coordinate of each of PARTS, before the first step and after each."""
    options = Options(
        dataset="shakespeare_char",
        batch_size=12,
        block_size=64,
        gradient_accumulation_steps=1,
        n_layer=2,
        learning_rate=RATE,
        decay_lr=False,
        **own,
    )
    prepare_if_missing(options.dataset)
    state = create_state(model_config(options, load_meta(options.dataset).vocab_size, None), options)
    step, batches = compile_step(state, options), StepBatches(options, Dataset(options.dataset))
    text = np.asarray(batches(STEPS)[0])[0, 0]  # tokens that these steps do not train on
    found = []
    for i in range(STEPS + 1):
        found.append(sizes(state.model, text))
        if i < STEPS:
            state, _ = step(state, *batches(i))
    return found


def sizes(model: GPT, text: np.ndarray) -> list[float]:
    """Return the root mean square of a coordinate of the stream, of what is added to it, and of logits."""
    seen, root = lens(model, text, 1), math.sqrt(model.config.n_embd)
    logits = np.asarray(predict(model, text[None]))
    parts = [seen.stream_norms[-1] / root, seen.attn_norms[-1] / root, seen.mlp_norms[-1] / root, logits]
    return [float(f"{np.sqrt(np.mean(np.square(part))):.5g}") for part in parts]


@eqx.filter_jit
def predict(model: GPT, tokens):
    return model(tokens)


def growth(found: dict, kind: str, part: str, step: int) -> tuple[float, float]:
    """Return how many times larger a part is at the largest width than at the smallest, after a step.

    Mean and standard deviation over the seeds.
    """
    index, then = PARTS.index(part), {}
    for run in found["runs"]:
        if run["kind"] == kind:
            then[run["width"], run["seed"]] = run["sizes"][step][index]
    ratios = [then[max(WIDTHS), s] / then[min(WIDTHS), s] for s in range(1, SEEDS + 1)]
    return fmean(ratios), stdev(ratios)


def table(found: dict) -> str:
    rows = [
        f"| width {max(WIDTHS)} by {min(WIDTHS)} | {' | '.join(PARTS)} |",
        "|---" * (1 + len(PARTS)) + "|",
    ]
    for kind, step in itertools.product(KINDS, (0, STEPS)):
        cells = " | ".join("{:.2f} ± {:.2f}".format(*growth(found, kind, part, step)) for part in PARTS)
        when = f"after {step} steps at {RATE:g}" if step else "at the start"
        rows.append(f"| {kind}, {when} | {cells} |")
    made = found["made"]
    return "\n".join(
        [
            "# coordinate_check",
            "",
            "How many times larger is a coordinate in the widest model than in the narrowest?",
            "",
            *rows,
            "",
            "![How large are activations, by width?](coordinate_check.svg)",
            "",
            f"Made by `python -m experiments.coordinate_check`: {SEEDS} seeds each, on {made['date']}.",
            f"CPU: {made['cpu']}.",
            f"Versions: {made['versions']}.",
            "",
        ]
    )


def draw(figure: Any, found: dict) -> None:
    """Draw each part's size against the width, a line for each of a few steps: means, and one deviation."""
    grid = figure.subplots(len(KINDS), len(PARTS), sharex=True, squeeze=False)
    for row, kind in zip(grid, KINDS, strict=True):
        for index, (axes, part) in enumerate(zip(row, PARTS, strict=True)):
            for i in (0, 1, 3, STEPS):
                by_width = [
                    [
                        run["sizes"][i][index]
                        for run in found["runs"]
                        if (run["kind"], run["width"]) == (kind, width)
                    ]
                    for width in WIDTHS
                ]
                means, spreads = [fmean(x) for x in by_width], [stdev(x) for x in by_width]
                axes.errorbar(WIDTHS, means, spreads, marker="o", ms=3, lw=1, label=f"step {i}")
            axes.set(title=f"{kind}: {part}", xscale="log", yscale="log")
            axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    grid[0, 0].legend(fontsize="small")


if __name__ == "__main__":
    command(main)
