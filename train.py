"""Train a GPT.

    python train.py config/quickstart.py                        every option: python train.py --help
    python train.py config/quickstart.py --batch_size=32        --key=value goes over the config file
    python train.py --out_dir=out-quickstart --init_from=resume     goes on where a run stopped
    python train.py --init_from=gpt2 --dataset=shakespeare --out_dir=out-bard   starts from GPT-2's weights
    python train.py --init_from=out-bard --lora_rank=8 --out_dir=out-lora     adapters beside a run's weights

Ctrl-C and SIGTERM save a checkpoint and end the run with status 0. A resumed run's weights are, to the bit,
those of a run that never stopped: batches and dropout follow from the seed and the iteration alone.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import reached_preemption_sync_point

from config.options import RESUMING, Options, UserError, command, load
from data.loader import NANOGPT, Batches, Meta, load_meta, prepare_if_missing
from data.tokenizer import end_of_text
from hub.weights import open_pretrained
from model import GPT, GPTConfig
from parallel.hosts import agree_on, assemble, check_same, hosts, on_process_0, rows_here, shared
from parallel.mesh import check_fit, make_mesh
from parallel.pipeline import pipeline_of
from parallel.sharding import draw_sharding, sharding_table
from training.checkpoint import Checkpoints, is_run, load_weights, save_merged, weights_shape
from training.hardware import choose_device, reuse_freed_memory, share_one_heap
from training.lora import fingerprint, trained, without_adapters
from training.manifest import Manifest, latest_manifest
from training.metrics import Metrics, write_whole
from training.profile import Profile
from training.step import (
    TrainState,
    compile_loss,
    compile_step,
    create_state,
    model_config,
    state_around,
    state_shapes,
)


def main(argv: list[str]) -> None:
    options = load(argv, weights_shape)
    share_one_heap()
    with hosts(options):
        choose_device(options.device)
        agree_on(options)
        with jax.set_mesh(make_mesh(options.mesh)):
            if options.lora_merge is None:
                run(options)
            else:
                iteration = save_merged(options.out_dir, options.lora_merge)
                print(f"iter {iteration} of {options.out_dir}, its adapters merged: {options.lora_merge}")


def run(options: Options) -> None:
    """The whole run, on the device mesh."""
    on_process_0(prepare_if_missing, options.dataset)
    meta = load_meta(options.dataset)
    vocab_size = vocabulary(options, meta)
    config = model_config(options, vocab_size, end_of_text(meta.tokenizer))
    check_fit(jax.sharding.get_mesh(), config, options.batch_size, options.gradient_accumulation_steps)
    pipeline_of(options)  # raises UserError for one that cannot be
    shapes = state_shapes(config, options)
    if options.show_sharding:
        print(sharding_table(shapes.model))
        draw_sharding(shapes.model)
        return
    batches = StepBatches(options)
    manifest = Manifest(options, vocab_size, meta.tokenizer, best_val_loss=None)

    checkpoints = Checkpoints(options.out_dir, options.keep_checkpoints, shared(Path(options.out_dir)))
    checkpoints.check(shapes)
    resume_at = where_to_resume(options, checkpoints)
    check_same(dataset=meta, checkpoint=resume_at)
    if resume_at is not None:
        manifest = manifest.after(checkpoints.manifest(resume_at), checkpoints.folder / str(resume_at))
    parameters, learning = (
        sum(x.size for x in jax.tree.leaves(tree)) for tree in (shapes.model, trained(shapes.model)[0])
    )
    part = f", of which {learning:,} are trained," if options.lora_rank else ""
    print(f"{parameters:,} parameters{part} on {jax.devices()[0].device_kind}")

    with stop_signals() as stop_asked:
        evaluate = make_evaluate(options, shapes.model)
        state, manifest = state_to_start_from(manifest, config, shapes, checkpoints, resume_at)
        if options.eval_only:
            print(", ".join(f"{split} loss {loss:.4f}" for split, loss in evaluate(state.model).items()))
            return
        claim_folder(options, checkpoints)
        metrics = Metrics(options, resume_at or 0, config, jax.sharding.get_mesh().size)
        try:
            train(options, state, batches, evaluate, checkpoints, manifest, metrics, stop_asked)
        finally:
            metrics.close()

    if checkpoints.latest() is None:
        print("no checkpoint was saved: the validation loss never improved")
        return
    print(f"checkpoints: {checkpoints.folder}, the last at iter {checkpoints.latest()}")
    print(f"sample from it: python sample.py --out_dir={options.out_dir}")


def vocabulary(options: Options, meta: Meta) -> int:
    """How many tokens the model knows. Raises UserError when they are fewer than those of the data set."""
    if options.vocab_size is None:
        return meta.vocab_size
    tokens = end_of_text(meta.tokenizer) + 1 if meta is NANOGPT else meta.vocab_size  # NANOGPT's is padded
    if options.vocab_size < tokens:
        raise UserError(
            f"dataset={options.dataset} has a vocabulary of {tokens} tokens, and the model one of "
            f"{options.vocab_size}: choose a data set of the model's own tokens"
        )
    return options.vocab_size


def state_to_start_from(
    manifest: Manifest, config: GPTConfig, shapes: TrainState, checkpoints: Checkpoints, resume_at: int | None
) -> tuple[TrainState, Manifest]:
    """The state that training begins with: that of a checkpoint, around given weights, or a new one.

    With the manifest, which now names the weights that adapters stand beside.
    """
    options = manifest.options
    if resume_at is not None:
        state = checkpoints.restore(resume_at, shapes)
        print(f"resuming at iter {resume_at}, from {checkpoints.folder / str(resume_at)}")
        return state, manifest
    if options.init_from in ("scratch", *RESUMING):
        if options.lora_rank:
            raise UserError(
                f"lora_rank={options.lora_rank} trains beside the weights of a model, and there are none: "
                "name it, as in --init_from=gpt2 or --init_from=<out_dir of another run>"
            )
        return create_state(config, options), manifest
    if is_run(options.init_from):
        if Path(options.init_from).resolve() == Path(options.out_dir).resolve():
            raise UserError(f"init_from={options.init_from} is out_dir too: choose another --out_dir")
        manifest.check_vocabulary(latest_manifest(options.init_from), options.init_from)
    elif open_pretrained(options.init_from).tokenizer() != manifest.tokenizer:
        print(f"note: dataset={options.dataset} is not of {options.init_from}'s own tokens", file=sys.stderr)
    model = load_weights(options.init_from, without_adapters(shapes.model))
    print(f"starting from the weights of {options.init_from}")
    if options.lora_rank:
        base = {"init_from": options.init_from, "fingerprint": fingerprint(model)}
        manifest = replace(manifest, base=base)
    return state_around(model, options), manifest


def train(
    options: Options,
    state: TrainState,
    batches: "StepBatches",
    evaluate: Callable[[GPT], dict[str, float]],
    checkpoints: Checkpoints,
    manifest: Manifest,
    metrics: Metrics,
    stop_asked: Callable[[int], bool],
) -> None:
    """Train from `state` to `max_iters`, or until asked to stop. At the end all checkpoints are on disk."""
    step = compile_step(state, options)
    reuse_freed_memory(step)
    profile = Profile(options.profile, step, metrics)
    i = first = int(state.step)
    while True:
        if (i % options.eval_interval == 0 or i == options.max_iters) and not metrics.evaluated(i):
            metrics.catch_up()
            losses = evaluate(state.model)
            metrics.evaluation(i, losses)
            manifest, improved = manifest.scored(losses["val"])
            if i > 0 and (improved or options.always_save_checkpoint):
                metrics.saved(checkpoints.save(state, manifest, losses["val"]))
        stopping = stop_asked(i)
        if i >= options.max_iters or stopping:
            break
        with profile.step(i - first):
            with metrics.making_batch():
                batch = batches(i)
            state, report = step(state, *batch)
            metrics.step(i, report, batches.epoch(i))  # reads step i - 1's report, while step i runs
        i += 1

    metrics.catch_up()
    profile.close(i - first)
    if stopping:
        if checkpoints.latest() != i:
            checkpoints.save(state, manifest)
        metrics.say(f"stopped at iter {i}; go on with --out_dir={options.out_dir} --init_from=resume")
    checkpoints.wait()


class StepBatches:
    """The batches of each step: `batches(i)` is x and y of step i, int32 (A, B, T), A microbatches."""

    def __init__(self, options: Options):
        self.shape = (options.gradient_accumulation_steps, options.batch_size, options.block_size)
        A, B, T = self.shape
        self.rows = Batches(options.dataset, "train", A * B, T, options.seed, options.sampling)
        self.here = np.arange(A * B).reshape(A, B)[:, rows_here(B)].ravel()
        self.epochs = options.sampling == "epoch"

    def __call__(self, i: int):
        A, B, T = self.shape
        return tuple(assemble(rows.reshape(A, -1, T), B) for rows in self.rows(i, self.here))

    def epoch(self, i: int) -> float | None:
        """How many times the steps before i went through the data; None for random windows."""
        return self.rows.epoch(i) if self.epochs else None


def claim_folder(options: Options, checkpoints: Checkpoints) -> None:
    """Make `out_dir` this run's: with its options, and without the run that it overwrites, if it does."""
    text = json.dumps(options.to_json(), indent=1) + "\n"
    on_process_0(write_whole, Path(options.out_dir) / "options.json", text)
    if options.overwrite:
        checkpoints.delete_all()


def make_evaluate(options: Options, model: GPT) -> Callable[[GPT], dict[str, float]]:
    """A function from a model to its mean loss on each split, over `eval_iters` batches or the whole split.

    The random batches are the same at each evaluation, so that its losses differ by the model alone.
    """
    B, T, n = options.batch_size, options.block_size, options.eval_iters
    splits = {
        split: Batches(options.dataset, split, B, T, seed=options.seed + 1) for split in ("train", "val")
    }
    compiled = compile_loss(model, options)

    def evaluate(model: GPT) -> dict[str, float]:
        return {split: mean_over(model, batches) for split, batches in splits.items()}

    def mean_over(model: GPT, batches: Batches) -> float:
        drawn = batches.every_window() if n == -1 else (batches(i) for i in range(n))
        here = rows_here(B)
        losses = [
            (compiled(model, assemble(x[here], B), assemble(y[here], B)), (y >= 0).sum()) for x, y in drawn
        ]
        return float(sum(float(loss) * tokens for loss, tokens in losses) / sum(t for _, t in losses))

    return evaluate


def where_to_resume(options: Options, checkpoints: Checkpoints) -> int | None:
    """The iteration to go on from, or None to start from scratch. No run's checkpoints are lost unasked."""
    latest = checkpoints.latest()
    if options.init_from == "resume" and latest is None:
        raise UserError(f"{checkpoints.folder}: no checkpoint to resume from; start with --init_from=scratch")
    if options.init_from in RESUMING:
        return latest
    if latest is not None and not (options.eval_only or options.overwrite):
        raise UserError(
            f"out_dir={options.out_dir} holds a run (iter {latest}): go on with --init_from=resume, "
            "choose another --out_dir, or lose it with --overwrite=True"
        )
    return None


@contextmanager
def stop_signals() -> Iterator[Callable[[int], bool]]:
    """Within, SIGINT and SIGTERM only make the function yielded true; a second one ends the run at once.

    It takes the iteration. Of many processes, one signalled makes it true in all of them at the same
    iteration: JAX catches SIGTERM and tells the others, and SIGINT is passed on to it as SIGTERM.
    """
    received, together = [], jax.process_count() > 1

    def receive(number, frame):
        if received:
            raise KeyboardInterrupt
        received.append(number)
        os.write(2, b"\nstopping after this step: a checkpoint is saved\n")  # print may be at work right now
        if together:
            signal.raise_signal(signal.SIGTERM)

    ours = (signal.SIGINT,) if together else (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, receive) for number in ours}
    try:
        yield reached_preemption_sync_point if together else lambda i: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    command(main)
