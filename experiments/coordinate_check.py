"""How large are activations, by width, over the first steps? The coordinate check of µP.

In µP (arXiv:2203.03466, appendix D.1) a coordinate of the stream, of what attention and MLP add to it, and of
the logits is as large in a wide model as in a narrow one, also after a few steps at one learning rate for
all. In the standard parametrisation some grow with the width, which is why the best rate falls.

    python -m experiments.coordinate_check              measure, for two minutes; then the table and the plot
    python -m experiments.coordinate_check --draw       the table and the plot of what is there

A few steps of each width run in this process, and nothing of them is kept but the sizes.
"""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pandas as pd
from tqdm import tqdm

from config.command_line import ScriptParser, UserError, command
from config.files import read_json, write_whole
from config.options import Options
from data.dataset import Dataset, load_meta, prepare_if_missing
from experiments.learning_rate import KINDS, WIDTHS
from experiments.record import RESULTS, machine
from experiments.report import draw_means, save_svg
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
    found = read_found(PATH)
    write_whole(PATH.with_suffix(".md"), table(found), "make room there")
    save_svg(PATH.with_suffix(".svg"), "coordinate_check", lambda figure: draw(figure, found["runs"]))
    print(f"the table: {PATH.with_suffix('.md')}")


def read_found(path: Path) -> dict[str, Any]:
    """Read what was measured: `made`, and `runs` of a kind, width and seed. Raises UserError."""
    if not path.exists():
        raise UserError(f"{path}: nothing is measured yet: run it without --draw")
    try:
        return read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as results ({error}): git checkout restores it") from None


def measure_all(path: Path) -> None:
    """Measure each kind, width and seed, and write what was found."""
    keep_compiled_programs()  # which a seed does not change
    choose_device("auto")
    runs = []
    with jax.set_mesh(make_mesh("data:1")):
        for kind, width, seed in tqdm(list(itertools.product(KINDS, WIDTHS, range(1, SEEDS + 1)))):
            sizes = measure(KINDS[kind] | {"n_embd": width, "n_head": 4, "seed": seed})
            runs.append({"kind": kind, "width": width, "seed": seed, "sizes": sizes})
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
    text = f'{{"made": {json.dumps(machine())},\n"runs": [\n{lines}\n]}}\n'
    write_whole(path, text, "make room there")


def measure(own: dict[str, Any]) -> list[list[float]]:
    """Return the size of a coordinate of each of PARTS, before the first step and after each."""
    batch = {"batch_size": 12, "block_size": 64, "gradient_accumulation_steps": 1}
    own = own | {"dataset": "shakespeare_char", "n_layer": 2, "learning_rate": RATE, "decay_lr": False}
    options = replace(Options(), **batch, **own)
    prepare_if_missing(options.dataset)
    state = create_state(model_config(options, load_meta(options.dataset).vocab_size, None), options)
    step, batches = compile_step(state, options), StepBatches(options, Dataset(options.dataset))
    text = np.asarray(batches(STEPS)[0])[0, 0]  # tokens that these steps do not train on
    found = [sizes(state.model, text)]
    for i in range(STEPS):
        state, _ = step(state, *batches(i))
        found.append(sizes(state.model, text))
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


def sizes_after(runs: list[dict], kind: str, step: int, part: str) -> pd.DataFrame:
    """Return the sizes of a part after a step: a row for each width, a column for each seed."""
    frame = pd.DataFrame([run for run in runs if run["kind"] == kind])
    frame["size"] = [sizes[step][PARTS.index(part)] for sizes in frame["sizes"]]
    return frame.pivot(index="width", columns="seed", values="size")


def growth(runs: list[dict], kind: str, step: int, part: str) -> tuple[float, float]:
    """Return how many times larger a part is at the largest width than at the smallest: mean, deviation."""
    found = sizes_after(runs, kind, step, part)
    ratios = found.loc[max(WIDTHS)] / found.loc[min(WIDTHS)]
    return ratios.mean(), ratios.std()


def table(found: dict) -> str:
    rows = [
        f"| width {max(WIDTHS)} by {min(WIDTHS)} | {' | '.join(PARTS)} |",
        "|---" * (1 + len(PARTS)) + "|",
    ]
    for kind, step in itertools.product(KINDS, (0, STEPS)):
        ratios = [growth(found["runs"], kind, step, part) for part in PARTS]
        when = f"after {step} steps at {RATE:g}" if step else "at the start"
        rows.append(f"| {kind}, {when} | {' | '.join('{:.2f} ± {:.2f}'.format(*x) for x in ratios)} |")
    made = found["made"]
    return "\n\n".join(
        [
            "# coordinate_check",
            "How many times larger is a coordinate in the widest model than in the narrowest?",
            "\n".join(rows),
            "![How large are activations, by width?](coordinate_check.svg)",
            f"Made by `python -m experiments.coordinate_check`: {SEEDS} seeds each, on {made['date']}.\n"
            f"CPU: {made['cpu']}.\nVersions: {made['versions']}.\n",
        ]
    )


def draw(figure: Any, runs: list[dict]) -> None:
    """Draw each part's size against the width, a line for each of a few steps."""
    grid = figure.subplots(len(KINDS), len(PARTS), sharex=True, squeeze=False)
    for axes, (kind, part) in zip(grid.flat, itertools.product(KINDS, PARTS), strict=True):
        for step in (0, 1, 3, STEPS):
            draw_means(axes, f"step {step}", sizes_after(runs, kind, step, part))
        axes.set(title=f"{kind}: {part}", xscale="log", yscale="log")
        axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    grid[0, 0].legend(fontsize="small")


if __name__ == "__main__":
    command(main)
