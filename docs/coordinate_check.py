"""Chapter 9: how many times larger is the stream at width 512 than at 64, after ten steps?

python -m docs.coordinate_check     # takes five minutes on two cores

This is µP's coordinate check (arXiv:2203.03466, appendix D.1), of the last block's output.
"""

from dataclasses import replace

import jax
import numpy as np

from config.options import Options
from data.dataset import Dataset, prepare_if_missing
from docs.figures.widths import BASE
from parallel.mesh import make_mesh
from runs.start import choose_config
from tools.inside.views import lens
from training.state import create_state
from training.step import StepBatches, compile_step

STEPS, SEEDS, NARROW, WIDE = 10, (1, 2, 3, 4, 5), 64, 512
SHAPE = {"n_layer": 2, "n_head": 4, "batch_size": 12, "block_size": 64, "gradient_accumulation_steps": 1}
OPTIONS = replace(Options(), dataset="shakespeare_char", learning_rate=2e-3, decay_lr=False, **SHAPE)


def stream(options: Options) -> float:
    """Return the root mean square of the stream's numbers after STEPS steps."""
    prepare_if_missing(options.dataset)
    dataset = Dataset(options.dataset, options.vocab_size)
    state = create_state(choose_config(options, dataset.meta), options)
    step, batches = compile_step(state, options), StepBatches(options, dataset)
    for i in range(STEPS):
        state, _ = step(state, *batches(i))
    text = np.asarray(batches(STEPS)[0])[0, 0]  # tokens that these steps did not train on
    return float(np.sqrt(np.mean(lens(state.model, text, 1).stream_norms[-1] ** 2) / options.n_embd))


if __name__ == "__main__":
    with jax.set_mesh(make_mesh("data:1")):
        for kind, own in {"standard": {}, "µP": {"mup_base_width": BASE}}.items():
            of_seeds = [replace(OPTIONS, seed=seed, **own) for seed in SEEDS]
            grown = [stream(replace(x, n_embd=WIDE)) / stream(replace(x, n_embd=NARROW)) for x in of_seeds]
            print(f"{kind}: {np.mean(grown):.2f} ± {np.std(grown, ddof=1):.2f} times as large")
