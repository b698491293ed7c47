"""Run a try's code for the referee, its training or its model, without sight of the text that judges it.

    python experiments/child.py CODE HIDDEN... -- train.py --out_dir=... ...
    python experiments/child.py CODE HIDDEN... -- model OUT_DIR asked.npz

CODE is the folder of the code. A process that opens a file below HIDDEN, and not
in the folder of its own run, ends.
"""

import os
import runpy
import sys
from dataclasses import replace
from pathlib import Path


def hide(folders: list[str], own: str) -> None:
    def look(event: str, arguments: tuple) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = Path(os.path.realpath(os.fsdecode(arguments[0])))
            if any(path.is_relative_to(folder) for folder in folders) and not path.is_relative_to(own):
                os.write(2, f"error: it opens {path}\n".encode())
                os._exit(2)

    sys.addaudithook(look)  # no Python code can take it away


def answer(out_dir: str, asked: str) -> None:
    """Put beside what is asked what a run's model computes, and the batches that its training has seen."""
    import jax
    import numpy as np

    from config.options import ModelOptions
    from data.dataset import Dataset
    from parallel.machines import choose_device
    from runs.checkpoint import latest_manifest
    from runs.load import load_model
    from training.state import create_state
    from training.step import StepBatches

    choose_device("auto")
    model, _ = load_model(ModelOptions(out_dir=out_dir))
    logits = jax.jit(lambda model, x: model(x))
    given, options = np.load(asked), latest_manifest(out_dir).options  # x (N, B, T), y (B, T), steps
    batches = StepBatches(options, Dataset(options.dataset, options.vocab_size))
    two = (replace(options, seed=options.seed + i) for i in (0, 1))
    first, second = (jax.tree.leaves(create_state(model.config, x).model) for x in two)
    np.savez(
        asked,
        logits=np.stack([logits(model, x) for x in given["x"]]),  # (N, B, T, V)
        loss=model.loss(given["x"][0], given["y"]),
        alike=all(map(np.array_equal, first, second)),
        batches=np.stack([batches(int(i)) for i in given["steps"]]),
    )


if __name__ == "__main__":
    cut = sys.argv.index("--")
    (code, *hidden), (program, *words) = sys.argv[1:cut], sys.argv[cut + 1 :]
    sys.path[0] = code
    own = words[0] if program == "model" else next(x[10:] for x in words if x.startswith("--out_dir="))
    hide(hidden, os.path.realpath(own))
    if program == "model":
        answer(*words)
    else:
        sys.argv = [os.path.join(code, program), *words]
        runpy.run_path(sys.argv[0], run_name="__main__")
