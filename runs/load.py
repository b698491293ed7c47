"""Weights to start from, to sample from or to evaluate: of a run, of a folder, or of the Hugging Face hub.

    model, tokenizer, iteration = load_run("out-quickstart")
    model, tokenizer = load_pretrained("gpt2")

A tokenizer is returned as its description, from which data.tokenizer.from_json makes one; None without one.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from config.command_line import UserError
from config.options import SHAPE, Options
from data.tokenizer import Tokenizer, end_of_text, from_json
from hub.weights import open_pretrained
from model import GPT
from runs.checkpoint import Checkpoints, arrays_by_name, tree_of_arrays
from runs.manifest import Damaged, Manifest, latest_manifest
from training.lora import fingerprint, merge, partition_trainable, without_adapters
from training.state import model_config, shape_options, state_shapes


def is_run(folder: str) -> bool:
    """Tell whether a folder has the checkpoints of a run."""
    return os.path.isdir(Path(folder) / "checkpoints")


def load_model(
    init_from: str, out_dir: str, dtype: str = "auto", longest: int | None = None
) -> tuple[GPT, dict | None]:
    """Load the model that a command's `--init_from` means, and its tokenizer (for data.tokenizer.from_json).

    "resume" is the latest checkpoint of the run in `out_dir`. `dtype` is that of the matrix products, as in
    `Options`. Weights that are not a run's come without room for more than `longest` tokens, if it is given.
    Raises UserError.
    """
    if init_from == "resume":
        return load_run(out_dir, dtype=dtype)[:2]
    return load_pretrained(init_from, dtype, longest)


def tokenizer_of(description: dict | None, init_from: str, out_dir: str) -> Tokenizer:
    """Make the tokenizer that a model of `load_model` came with. Raises UserError when there is none."""
    if description is not None:
        return from_json(description)
    if init_from == "resume":
        raise UserError(f"out_dir={out_dir}: the tokens of this run are not text, so none can be written")
    raise UserError(
        f"init_from={init_from}: there is no tokenizer.json, and without one no text can be written: "
        "put the model's own there, or sample from the run that it was exported from, with --out_dir"
    )


def load_run(out_dir: str, iteration: int | None = None, dtype: str = "auto") -> tuple[GPT, dict | None, int]:
    """Load a run's model, with its adapters merged, its tokenizer and its iteration, by default the latest.

    Raises UserError when there is no such checkpoint, or when it is damaged.
    """
    model, manifest, iteration = load_run_with_adapters(out_dir, iteration, dtype)
    return merge(model) if manifest.options.lora_rank else model, manifest.tokenizer, iteration


def load_run_with_adapters(
    out_dir: str, iteration: int | None = None, dtype: str = "auto"
) -> tuple[GPT, Manifest, int]:
    """Do as `load_run`, but keep adapters as they are, and return the whole manifest."""
    checkpoints = Checkpoints(out_dir)
    while saved := checkpoints.iterations():
        chosen = saved[-1] if iteration is None else iteration
        if chosen not in saved:
            raise UserError(f"{checkpoints.folder}: no checkpoint {chosen}; there are {saved}")
        try:
            return *restore_to_read(checkpoints, chosen, dtype), chosen
        except Damaged:
            if iteration is not None or (checkpoints.folder / str(chosen)).exists():
                raise
            checkpoints.look_again()  # a run has replaced it by a newer one just now
    raise UserError(f"{checkpoints.folder}: no checkpoint there; train one with --out_dir={out_dir}")


def restore_to_read(checkpoints: Checkpoints, iteration: int, dtype: str) -> tuple[GPT, Manifest]:
    """Restore the model of a checkpoint, wherever it was trained, and its manifest. Raises UserError."""
    manifest = checkpoints.manifest(iteration)
    options = replace(manifest.options, dtype=dtype, attention="auto")  # not as where it was trained
    config = model_config(options, manifest.vocab_size, end_of_text(manifest.tokenizer))
    shapes = state_shapes(config, options).model
    base = load_base(checkpoints, iteration, shapes)
    return checkpoints.restore_model(iteration, shapes, base), manifest


def load_base(checkpoints: Checkpoints, iteration: int, shapes: GPT) -> GPT | None:
    """Load the weights below a checkpoint's adapters; None for a model without adapters.

    Raises UserError when they are not found, or are not those beside which the adapters were trained.
    """
    base, path = checkpoints.manifest(iteration).base, checkpoints.folder / str(iteration)
    if base is None:
        return None
    check_no_base_cycle(checkpoints.folder.parent, base)
    _, frozen = partition_trainable(shapes)
    try:
        model = load_weights(base["init_from"], without_adapters(frozen))
    except UserError as error:
        raise UserError(f"{path}: the model below its adapters cannot be loaded: {error}") from None
    if fingerprint(model) != base["fingerprint"]:
        raise UserError(
            f"{path}: its adapters were trained beside other weights than {base['init_from']} has now: "
            "put those back, or train anew in another --out_dir"
        )
    return tree_of_arrays(arrays_by_name(model), frozen)


def check_no_base_cycle(out_dir: Path, base: dict[str, str] | None) -> None:
    """Raise UserError when a run, whose manifest names `base`, is among the runs below its own adapters."""
    above = {out_dir}
    while base is not None and is_run(base["init_from"]):
        folder = Path(base["init_from"]).resolve()
        if folder in above:
            raise UserError(f"{folder}: the run is below its own adapters: its manifest is damaged")
        above.add(folder)
        base = latest_manifest(str(folder)).base


def load_weights(init_from: str, shapes: GPT) -> GPT:
    """Load the weights that `--init_from=<init_from>` means: of a run's folder, or whatever `hub` finds.

    They have the dtypes and shardings of `shapes`, whose block_size may be smaller. Raises UserError.
    """
    if not is_run(init_from):
        return open_pretrained(init_from).load(shapes)
    model = tree_of_arrays(arrays_by_name(load_run(init_from)[0]), shapes)
    return jax.tree.map(lambda x, like: x[: len(like)].astype(like.dtype), model, shapes)


def shape_of_weights(init_from: str) -> dict[str, Any]:
    """Return the options that the weights of that name decide: shape and vocabulary. Raises UserError."""
    if not is_run(init_from):
        return shape_options(open_pretrained(init_from).config)
    manifest = latest_manifest(init_from)
    shape = {name: getattr(manifest.options, name) for name in SHAPE}
    return shape | {"vocab_size": manifest.vocab_size}


def load_pretrained(name: str, dtype: str = "auto", longest: int | None = None) -> tuple[GPT, dict | None]:
    """Load the model of a folder or of the hub, and its tokenizer (for data.tokenizer.from_json).

    A key/value cache is as long as block_size, which some models have in the hundred thousands; `longest`
    limits it. Raises UserError.
    """
    if is_run(name):
        raise UserError(f"init_from={name} is the folder of a run: give --out_dir={name} instead")
    pretrained = open_pretrained(name)
    options = replace(Options(), dtype=dtype, **shape_options(pretrained.config))
    options = replace(options, block_size=min(options.block_size, longest or options.block_size))
    config = model_config(options, pretrained.config.vocab_size)
    return pretrained.load(state_shapes(config, options).model), pretrained.tokenizer()
