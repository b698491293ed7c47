"""How large are activations, by width, over the first steps? The coordinate check of µP.

In µP (arXiv:2203.03466, appendix D.1) a coordinate of the stream, of what attention and MLP add to it, and of
the logits is as large in a wide model as in a narrow one, also after a few steps. In the standard
parametrisation some grow with the width.
"""

import itertools
import json
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pandas as pd
from tqdm import tqdm

from config.command_line import UserError, command
from config.files import write_whole
from config.options import Options
from experiments.learning_rate import KINDS, WIDTHS
from experiments.record import RESULTS, machine
from experiments.report import draw_means, save_svg
from model import GPT
from parallel.machines import choose_device, keep_compiled_programs
from parallel.mesh import make_mesh
from runs.load import choose_config, open_dataset
from tools.inside.views import lens
from training.state import create_state
from training.step import StepBatches, compile_step

STEPS, SEEDS, RATE = 10, 5, 2e-3
PARTS = ("stream", "attention", "mlp", "logits")
PATH = RESULTS / "coordinate_check.json"


def main(argv: list[str]) -> None:
    """Measure all widths, and write the sizes, the table and the plot."""
    if argv:
        raise UserError(f"{argv[0]}: expected no options")
    keep_compiled_programs()  # which a seed does not change
    choose_device("auto")
    runs, made = [], machine()
    with jax.set_mesh(make_mesh("data:1")):
        for kind, width, seed in tqdm(list(itertools.product(KINDS, WIDTHS, range(1, SEEDS + 1)))):
            found = measure(KINDS[kind] | {"n_embd": width, "n_head": 4, "seed": seed})
            runs.append({"kind": kind, "width": width, "seed": seed, "sizes": found})
    shape = len(KINDS), len(WIDTHS), SEEDS, 1 + STEPS, len(PARTS)
    sizes = np.array([run["sizes"] for run in runs]).reshape(shape)
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
    write_whole(PATH, f'{{"made": {json.dumps(made)},\n"runs": [\n{lines}\n]}}\n')
    write_whole(PATH.with_suffix(".md"), table(sizes, made))
    save_svg(PATH.with_suffix(".svg"), lambda figure: draw(figure, sizes))
    print(f"the table: {PATH.with_suffix('.md')}")


def measure(own: dict[str, Any]) -> list[list[float]]:
    """Return the size of a coordinate of PARTS, before the first step and after each."""
    batch = {"batch_size": 12, "block_size": 64, "gradient_accumulation_steps": 1}
    own = own | {"dataset": "shakespeare_char", "n_layer": 2, "learning_rate": RATE, "decay_lr": False}
    options = replace(Options(), **batch, **own)
    dataset = open_dataset(options)
    state = create_state(choose_config(options, dataset.meta), options)
    step, batches = compile_step(state, options), StepBatches(options, dataset)
    text = np.asarray(batches(STEPS)[0])[0, 0]  # tokens that these steps do not train on
    found = [sizes(state.model, text)]
    for i in range(STEPS):
        state, _ = step(state, *batches(i))
        found.append(sizes(state.model, text))
    return found


def sizes(model: GPT, text: np.ndarray) -> list[float]:
    """Return the root mean square of PARTS."""
    seen, root = lens(model, text, 1), np.sqrt(model.config.n_embd)
    logits = np.asarray(eqx.filter_jit(model)(jax.numpy.asarray(text[None])))
    parts = [seen.stream_norms[-1] / root, seen.attn_norms[-1] / root, seen.mlp_norms[-1] / root, logits]
    return [float(f"{np.sqrt(np.mean(np.square(part))):.5g}") for part in parts]


def table(sizes: np.ndarray, made: dict[str, str]) -> str:
    rows = [f"| width {max(WIDTHS)} by {min(WIDTHS)} | {' | '.join(PARTS)} |"]
    rows.append("|---" * (1 + len(PARTS)) + "|")
    growth = sizes[:, -1] / sizes[:, 0]  # (kinds, seeds, 1 + STEPS, PARTS)
    for (row, kind), step in itertools.product(enumerate(KINDS), (0, STEPS)):
        found = pd.DataFrame(growth[row, :, step]).agg(["mean", "std"])
        ratios = [f"{mean:.2f} ± {spread:.2f}" for mean, spread in found.T.to_numpy()]
        when = f"after {step} steps at {RATE:g}" if step else "at the start"
        rows.append(f"| {kind}, {when} | {' | '.join(ratios)} |")
    parts = [
        "# coordinate_check",
        "How many times larger is a coordinate in the widest model than in the narrowest?",
        "\n".join(rows),
        "![How large are activations, by width?](coordinate_check.svg)",
        f"Made by `python -m experiments.coordinate_check`: {SEEDS} seeds each, on {made['date']}.\n"
        f"CPU: {made['cpu']}.\nVersions: {made['versions']}.\n",
    ]
    return "\n\n".join(parts)


def draw(figure: Any, sizes: np.ndarray) -> None:
    """Draw each part's size over the width, a line for each of a few steps."""
    grid = figure.subplots(len(KINDS), len(PARTS), sharex=True, squeeze=False)
    for (row, kind), (column, part) in itertools.product(enumerate(KINDS), enumerate(PARTS)):
        axes = grid[row, column]
        for step in (0, 1, 3, STEPS):
            draw_means(axes, f"step {step}", pd.DataFrame(sizes[row, :, :, step, column], index=WIDTHS))
        axes.set(title=f"{kind}: {part}", xscale="log", yscale="log")
        axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    grid[0, 0].legend(fontsize="small")


if __name__ == "__main__":
    command(main)
