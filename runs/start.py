"""Start a run that trains: anew, from weights, or from its newest checkpoint.

Each function raises UserError.
"""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from common.devices import count_cpus
from common.errors import UserError
from config.options import RESUMING, SHAPE, Options
from data.dataset import Dataset, Meta, prepare_if_missing
from data.tokenizer import document_start, same_tokens
from hub.weights import open_pretrained
from model import GPTConfig, leaf_name
from parallel.machines import check_same, on_process_0, shared
from parallel.mesh import check_fit
from runs.checkpoint import Checkpoints, Damaged, Manifest, Score, checkpoint_folders, latest_manifest
from runs.load import fingerprint, is_run, lasting, load_base, load_weights
from runs.metrics import flops_per_token
from training.compute import choose_how
from training.lora import without_adapters
from training.state import TrainState, create_state, create_state_around, model_config, state_shapes

CPU = 25e9  # FLOP/s of a core, about: the quickstart's on an EPYC without bfloat16


def shape_of_weights(init_from: str) -> dict[str, Any]:
    """Return the options that weights decide."""
    if is_run(init_from):
        manifest = latest_manifest(init_from)
        return {name: getattr(manifest.options, name) for name in SHAPE} | {"vocab_size": manifest.vocab_size}
    config = open_pretrained(init_from).config  # which has no variants
    return {name: getattr(config, name, getattr(Options, name)) for name in (*SHAPE, "vocab_size")}


@dataclass(frozen=True)
class Run:
    """All that is decided before a run's state is made."""

    options: Options
    checkpoints: Checkpoints
    resuming: bool  # from the newest valid checkpoint
    dataset: Dataset
    config: GPTConfig
    shapes: TrainState  # shapes, dtypes and shardings of its state


def open_run(options: Options) -> Run:
    """Decide whether the run resumes, on which data and model, and how its state is split. Print its size."""
    all_see_it = shared(Path(options.out_dir))
    checkpoints = open_checkpoints(options, all_see_it)
    latest, resuming = checkpoints.latest(), options.init_from in RESUMING
    if options.init_from == "resume" and latest is None:
        raise UserError(f"{checkpoints.folder}: no checkpoint to resume from; start with --init_from=scratch")
    if latest is not None and not (resuming or options.eval_only or options.overwrite):
        raise UserError(
            f"out_dir={options.out_dir} holds a run (iter {latest}): go on with --init_from=resume, "
            "choose another --out_dir, or lose it with --overwrite=True"
        )
    resuming = resuming and latest is not None
    # Processes evaluate together, when no loss is stored.
    check_same(checkpoints=[(i, checkpoints.loss(i)) for i in checkpoints.iterations()] if resuming else None)
    on_process_0(prepare_if_missing, options.dataset)
    dataset = Dataset(options.dataset, options.vocab_size)
    check_same(dataset=dataset.meta)
    if dataset.folder == Path(options.dataset):  # a path, to be found from any folder
        options = replace(options, dataset=os.path.abspath(options.dataset))
    config = choose_config(options, dataset.meta)
    shapes = state_shapes(config, options)
    sizes = {leaf_name(path): x.size for path, x in jax.tree.leaves_with_path(shapes.model)}
    trained = sum(size for name, size in sizes.items() if "lora_" in name)
    adapters = f", of which {trained:,} are trained," if trained else ""
    how = f"on {jax.devices()[0].device_kind}, products in {choose_how(options, config).dtype}"
    text = f"{len(dataset.tokens('train').ids):,} tokens of {options.dataset}"
    print(f"{sum(sizes.values()):,} parameters{adapters} {how}, and {text}")
    return Run(options, checkpoints, resuming, dataset, config, shapes)


def open_checkpoints(options: Options, all_see_it: bool) -> Checkpoints:
    """Open a run's checkpoints. One whose loss is damaged is moved away, as in `newest_valid_state`."""
    while True:
        try:
            checkpoints = Checkpoints(options.out_dir, options.keep_checkpoints, all_see_it)
            for iteration in checkpoints.iterations():
                checkpoints.loss(iteration)
            return checkpoints
        except Damaged as damage:
            alone = len(checkpoint_folders(options.out_dir)) == 1
            if options.eval_only or alone or options.init_from not in RESUMING or jax.process_count() > 1:
                raise
            place = Checkpoints.set_aside(damage.checkpoint)
            print(f"note: {damage.what}: it was moved to {place}", file=sys.stderr)


def warn_of_hours(run: Run) -> None:
    """Say so before a CPU begins a run of many hours."""
    options, device = run.options, jax.devices()[0]
    steps = options.max_iters - (run.checkpoints.latest() or 0 if run.resuming else 0)
    flops = flops_per_token(run.config, options.block_size) * options.tokens_per_step * steps
    hours = flops / (CPU * count_cpus()) / 3600
    if device.platform == "cpu" and hours > 3:
        advice = "config/my_text.py and config/quickstart.py have models for a CPU"
        print(f"note: {steps:,} steps may take {hours:,.0f} hours here: {advice}", file=sys.stderr)


def choose_config(options: Options, meta: Meta) -> GPTConfig:
    """Describe the model. Raises UserError for one that the data or the mesh do not suit."""
    vocab_size = options.vocab_size or meta.vocab_size
    if vocab_size < meta.vocab_size:
        raise UserError(
            f"dataset={options.dataset} has a vocabulary of {meta.vocab_size} tokens, and the model one of "
            f"{vocab_size}: choose a data set of the model's own tokens"
        )
    config = model_config(options, vocab_size, document_start(meta.tokenizer))
    check_fit(jax.sharding.get_mesh(), config, options.batch_size, options.gradient_accumulation_steps)
    return config


def starting_state(run: Run, score: Score = "loss") -> tuple[TrainState, Manifest]:
    """Return the state that training begins with, restored or new, and its manifest. Raises UserError."""
    options = run.options
    meta = run.dataset.meta
    manifest = Manifest(options, run.config.vocab_size, meta.tokenizer, score=score, sha256=meta.sha256)
    if run.resuming:
        return newest_valid_state(run, manifest)
    if options.init_from not in ("scratch", *RESUMING):
        return state_from_weights(run, manifest)
    if options.lora_rank:
        raise UserError(
            f"lora_rank={options.lora_rank} trains beside the weights of a model, and there are none: "
            "name it, as in --init_from=gpt2 or --init_from=<out_dir of another run>"
        )
    return create_state(run.config, options), manifest


def newest_valid_state(run: Run, first: Manifest) -> tuple[TrainState, Manifest]:
    """Restore the newest valid checkpoint. Damaged ones before the last are moved to `damaged`.

    Many processes then end, since perhaps only one of them has noticed.
    """
    checkpoints = run.checkpoints
    while True:
        iterations = checkpoints.iterations()
        path = checkpoints.folder / str(iteration := iterations[-1])
        try:
            saved = checkpoints.manifest(iteration)
            tokenizer = going_on(saved.tokenizer, run.dataset.meta)
            manifest = replace(first.resuming_from(saved, path), tokenizer=tokenizer)
            base = load_base(checkpoints, saved, run.shapes.model)
            state = checkpoints.restore(iteration, run.shapes, base)
            print(f"resuming at iter {iteration}, from {path}")
            return state, manifest
        except Damaged as damage:
            if run.options.eval_only or len(iterations) == 1:
                raise
            place = checkpoints.set_aside(path)
            checkpoints.manager.reload()
            if jax.process_count() > 1:
                raise UserError(f"{damage.what}: it was moved to {place}: start all again") from None
            print(f"note: {damage.what}: it was moved to {place}", file=sys.stderr)


def going_on(tokenizer: dict | None, meta: Meta) -> dict | None:
    """Return the tokenizer of weights that go on with a data set: the same tokens, for what both use them."""
    if not (tokenizer and "uses" in tokenizer and meta.tokenizer):
        return meta.tokenizer
    uses, start = tokenizer["uses"], document_start(meta.tokenizer)
    if start != document_start(tokenizer):
        uses = uses | {"document_start": start}
    if meta.row:  # conversations, which the data's template made
        learned = ("document_start", "conversation_start", "chat_template", "system_message")
        uses = uses | {name: meta.tokenizer["uses"][name] for name in learned}
    return tokenizer | {"uses": uses}


def state_from_weights(run: Run, manifest: Manifest) -> tuple[TrainState, Manifest]:
    options = run.options
    if is_run(options.init_from):
        name, needed = options.init_from, []
        while name and is_run(name) and name not in needed:  # adapters need what they were trained beside
            needed.append(name)
            if Path(name).resolve() == Path(options.out_dir).resolve():
                what = options.init_from + ("" if len(needed) == 1 else f" needs {name}, which")
                raise UserError(f"init_from={what} is out_dir too: choose another --out_dir")
            name = (latest_manifest(name).base or {}).get("init_from")
        start = latest_manifest(options.init_from)
        manifest.check_vocabulary(start, options.init_from)
        tokenizer = start.tokenizer
    else:
        tokenizer = open_pretrained(options.init_from).tokenizer()
    if not same_tokens(tokenizer, manifest.tokenizer):
        known = f"{options.init_from} is not known to have learned the tokens of"
        print(f"note: {known} dataset={options.dataset}", file=sys.stderr)
    else:
        manifest = replace(manifest, tokenizer=going_on(tokenizer, run.dataset.meta))
    model = load_weights(options.init_from, without_adapters(run.shapes.model))
    print(f"starting from the weights of {options.init_from}")
    if options.lora_rank:
        mark = fingerprint(model, options.init_from)
        base = {"init_from": lasting(options.init_from), "fingerprint": mark}
        manifest = replace(manifest, base=base)
    return create_state_around(model, options), manifest
