"""Weights of a run, of a folder, or of the Hugging Face hub. Each function raises UserError.

A tokenizer is a description for data.tokenizer.from_json; None where there is none.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from config.command_line import Checkpoint, UserError
from config.options import SHAPE, ModelOptions, Options
from data.tokenizer import Tokenizer, document_start, from_json
from hub.weights import open_pretrained
from model import GPT
from runs.checkpoint import (
    Checkpoints,
    Manifest,
    arrays_by_name,
    fingerprint,
    latest_manifest,
    tree_of_arrays,
)
from training.lora import merge, partition_trainable, without_adapters
from training.state import model_config, shape_options, state_shapes


def is_run(folder: str) -> bool:
    return os.path.isdir(Path(folder) / "checkpoints")


def load_model(options: ModelOptions, longest: int | None = None) -> tuple[GPT, dict | None]:
    """Load the model and tokenizer that a command's options name."""
    if options.init_from != "resume":
        return load_pretrained(options.init_from, options.dtype, longest)
    model, manifest, _ = load_run(options.out_dir, options.checkpoint, options.dtype)
    return model, manifest.tokenizer


def tokenizer_of(description: dict | None, init_from: str, out_dir: str) -> Tokenizer:
    """Make the tokenizer of a model of `load_model`. Raises UserError when there is none."""
    if description is not None:
        return from_json(description)
    place = f"out_dir={out_dir}" if init_from == "resume" else f"init_from={init_from}"
    raise UserError(f"{place}: its tokens are not text: put the model's tokenizer.json beside its weights")


def load_run(
    out_dir: str, checkpoint: Checkpoint = "last", dtype: str = "auto", merged: bool = True
) -> tuple[GPT, Manifest, int]:
    """Load a run's checkpoint, and return its iteration, too."""
    checkpoints = Checkpoints(out_dir)
    chosen = checkpoints.find(checkpoint)
    manifest = checkpoints.manifest(chosen)
    options = replace(manifest.options, dtype=dtype, attention="auto")  # not as where it was trained
    config = model_config(options, manifest.vocab_size, document_start(manifest.tokenizer))
    shapes = state_shapes(config, options).model
    base = load_base(checkpoints, manifest, shapes)
    model = checkpoints.restore_model(chosen, shapes, base)
    return merge(model) if merged and options.lora_rank else model, manifest, chosen


def load_base(checkpoints: Checkpoints, manifest: Manifest, shapes: GPT) -> GPT | None:
    """Load the base model of a checkpoint's adapters, if any. Raises UserError if it is another."""
    if (base := manifest.base) is None:
        return None
    run, (_, frozen) = checkpoints.folder.parent, partition_trainable(shapes)
    try:
        model = load_weights(base["init_from"], without_adapters(frozen))
    except UserError as error:  # a Damaged base is no damage to the adapters
        raise UserError(f"{run}: the base model of its adapters cannot be loaded: {error}") from None
    if fingerprint(model) != base["fingerprint"]:
        raise UserError(
            f"{run}: its adapters were trained beside other weights than {base['init_from']} has now: "
            "put those back, or train anew in another --out_dir"
        )
    return tree_of_arrays(arrays_by_name(model), frozen)


def load_weights(init_from: str, shapes: GPT) -> GPT:
    """Load weights in the dtypes and shardings of `shapes`, whose block_size may be smaller."""
    if not is_run(init_from):
        return open_pretrained(init_from).load(shapes)
    model = tree_of_arrays(arrays_by_name(load_run(init_from)[0]), shapes)
    return jax.tree.map(lambda x, like: x[: len(like)].astype(like.dtype), model, shapes)


def shape_of_weights(init_from: str) -> dict[str, Any]:
    """Return the options that weights decide."""
    if not is_run(init_from):
        return shape_options(open_pretrained(init_from).config)
    manifest = latest_manifest(init_from)
    shape = {name: getattr(manifest.options, name) for name in SHAPE}
    return shape | {"vocab_size": manifest.vocab_size}


def load_pretrained(name: str, dtype: str = "auto", longest: int | None = None) -> tuple[GPT, dict | None]:
    """Load the model of a folder or of the hub, with a block_size of at most `longest`, and its tokenizer."""
    if is_run(name):
        raise UserError(f"init_from={name} is the folder of a run: give --out_dir={name} instead")
    pretrained = open_pretrained(name)
    options = replace(Options(), dtype=dtype, **shape_options(pretrained.config))
    options = replace(options, block_size=min(options.block_size, longest or options.block_size))
    config = model_config(options, pretrained.config.vocab_size)
    return pretrained.load(state_shapes(config, options).model), pretrained.tokenizer()
