"""Load a model: of a run, a folder or the hub.

Each function raises UserError. A tokenizer is a description for data.tokenizer.from_json; None where there is
none.
"""

import hashlib
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp

from common.command_line import Checkpoint
from common.errors import UserError
from config.options import ModelOptions, Options
from data.tokenizer import Tokenizer, document_start, from_json
from hub.weights import open_pretrained
from model import GPT
from runs.checkpoint import Checkpoints, Manifest, arrays_by_name, checksums, latest_manifest, tree_of_arrays
from training.compute import for_inference, probe
from training.lora import merge, partition_trainable, without_adapters
from training.state import model_config, state_shapes

ROUNDING = 0.02  # what a `probe` may differ between devices, whose products may have operands of 8 bits


def is_run(folder: str) -> bool:
    return os.path.isdir(Path(folder) / "checkpoints")


def load_model(options: ModelOptions, longest: int | None = None) -> tuple[GPT, dict | None]:
    """Load the model and tokenizer that a command's options name, computed as they say."""
    if options.init_from != "resume":
        model, tokenizer = load_pretrained(options.init_from, longest)
    else:
        model, manifest, _ = load_run(options.out_dir, options.checkpoint)
        tokenizer = manifest.tokenizer
    return for_inference(model, options.dtype), tokenizer


def tokenizer_of(description: dict | None, init_from: str, out_dir: str) -> Tokenizer:
    """Make the tokenizer of a model of `load_model`. Raises UserError when there is none."""
    if description is not None:
        return from_json(description)
    place, advice = f"init_from={init_from}", "put the model's tokenizer.json beside its weights"
    if init_from == "resume":
        place, advice = f"out_dir={out_dir}", "train on a data set whose meta.json has a tokenizer"
    raise UserError(f"{place}: its tokens are not text: {advice}")


def load_run(out_dir: str, checkpoint: Checkpoint = "last", merged: bool = True) -> tuple[GPT, Manifest, int]:
    """Load a run's checkpoint, and return its iteration, too."""
    checkpoints = Checkpoints(out_dir)
    chosen = checkpoints.find(checkpoint)
    manifest = checkpoints.manifest(chosen)
    options = manifest.options
    config = model_config(options, manifest.vocab_size, document_start(manifest.tokenizer))
    shapes = state_shapes(config, options).model
    base = load_base(checkpoints, manifest, shapes)
    model = checkpoints.restore_model(chosen, shapes, base)
    note_other_code(model, manifest, checkpoints.folder / str(chosen))
    return merge(model) if merged and options.lora_rank else model, manifest, chosen


def note_other_code(model: GPT, manifest: Manifest, checkpoint: Path) -> None:
    """Say so if the code computes another loss of the model than the code that saved it."""
    before, now = manifest.probe, float(probe(model))
    if before is not None and not math.isclose(before, now, rel_tol=ROUNDING):
        what = f"{checkpoint}: the model's code has changed since it was saved"
        print(f"note: {what}: a loss of {now:.3f} instead of {before:.3f}", file=sys.stderr)


def load_base(checkpoints: Checkpoints, manifest: Manifest, shapes: GPT) -> GPT | None:
    """Load the base model of a checkpoint's adapters, if any. Raises UserError if it is another."""
    if (base := manifest.base) is None:
        return None
    run = checkpoints.folder.parent
    try:
        model = load_weights(base["init_from"], without_adapters(shapes))
    except UserError as error:  # a Damaged base is no damage to the adapters
        raise UserError(f"{run}: the base model of its adapters cannot be loaded: {error}") from None
    if fingerprint(model, base["init_from"]) != base["fingerprint"]:
        raise changed(f"{run}: its adapters were trained beside", base["init_from"])
    return tree_of_arrays(arrays_by_name(model), partition_trainable(shapes)[1])


def fingerprint(model: GPT, init_from: str) -> str:
    """Hash a model's weights, as bfloat16, to know what a run began with again.

    Each device merges adapters in its own rounding. A run of adapters is known by what it saved.
    """
    if is_run(init_from) and (manifest := latest_manifest(init_from)).base:
        saved = sorted(manifest.checksums["model"].items()), manifest.base["fingerprint"]
        return hashlib.sha256(repr(saved).encode()).hexdigest()
    rounded = {name: x.astype(jnp.bfloat16) for name, x in arrays_by_name(model).items()}
    return hashlib.sha256(repr(sorted(checksums({"": rounded})[""].items())).encode()).hexdigest()


def changed(what: str, init_from: str) -> UserError:
    """Return the error of a run whose start has changed."""
    return UserError(
        f"{what} other weights than {init_from} has now: put those back, or train anew in another --out_dir"
    )


def lasting(init_from: str) -> str:
    """Return a name of weights that means the same from any folder."""
    return os.path.abspath(init_from) if os.path.isdir(init_from) else init_from


def load_weights(init_from: str, shapes: GPT) -> GPT:
    """Load weights in the shardings of `shapes`, whose block_size may be smaller."""
    if not is_run(init_from):
        return open_pretrained(init_from).load(shapes)
    model = tree_of_arrays(arrays_by_name(load_run(init_from)[0]), shapes)
    return jax.tree.map(lambda x, like: x[: len(like)], model, shapes)


def load_pretrained(name: str, longest: int | None = None) -> tuple[GPT, dict | None]:
    """Load the model of a folder or of the hub, with a block_size of at most `longest`, and its tokenizer."""
    if is_run(name):
        raise UserError(f"init_from={name} is the folder of a run: give --out_dir={name} instead")
    pretrained = open_pretrained(name)
    most = pretrained.config.block_size
    config = replace(pretrained.config, block_size=min(most, longest or most))
    return pretrained.load(state_shapes(config, Options()).model), pretrained.tokenizer()
