"""Train a GPT.

    python train.py config/quickstart.py                        every option: python train.py --help
    python train.py config/quickstart.py --batch_size=32        --key=value goes over the config file
    python train.py --out_dir=out-quickstart --init_from=resume     goes on where a run stopped
    python train.py --init_from=gpt2 --dataset=shakespeare --out_dir=out-bard   starts from GPT-2's weights
    python train.py --init_from=out-bard --lora_rank=8 --out_dir=out-lora     adapters beside a run's weights

Ctrl-C and SIGTERM save a checkpoint and end the run with status 0. A resumed run's weights are, to the bit,
those of a run that never stopped: batches and dropout follow from the seed and the iteration alone.
"""

from collections.abc import Callable

import jax

from config.command_line import command
from config.options import Options, parse_options
from evaluation.split import make_evaluate
from model import GPT
from parallel.batches import StepBatches
from parallel.sharding import draw_sharding, sharding_table
from runs.checkpoint import Checkpoints
from runs.hardware import on_devices, reuse_freed_memory, share_one_heap
from runs.load import save_merged, shape_of_weights
from runs.manifest import Manifest
from runs.metrics import Metrics
from runs.profile import Profile
from runs.signals import stop_signals
from runs.start import claim_folder, describe_run, open_checkpoints, starting_state
from training.lora import partition_trainable
from training.state import TrainState, state_shapes
from training.step import compile_step


def main(argv: list[str]) -> None:
    options = parse_options(argv, shape_of_weights)
    share_one_heap()
    with on_devices(options):
        if options.lora_merge is None:
            run(options)
        else:
            iteration = save_merged(options.out_dir, options.lora_merge)
            print(f"iter {iteration} of {options.out_dir}, its adapters merged: {options.lora_merge}")


def run(options: Options) -> None:
    """Do a whole run: start or resume, train, and leave checkpoints behind."""
    config, manifest = describe_run(options)
    shapes = state_shapes(config, options)
    if options.show_sharding:
        print(sharding_table(shapes.model))
        draw_sharding(shapes.model)
        return
    batches = StepBatches(options)
    checkpoints, manifest, resume_at = open_checkpoints(manifest, shapes)
    print(parameter_count(shapes.model))

    with stop_signals() as stop_asked:
        state, manifest = starting_state(manifest, config, shapes, checkpoints, resume_at)
        evaluate = make_evaluate(options, state.model)
        if options.eval_only:
            print(", ".join(f"{split} loss {loss:.4f}" for split, loss in evaluate(state.model).items()))
            return
        claim_folder(options, checkpoints)
        metrics = Metrics(options, resume_at or 0, config, jax.sharding.get_mesh().size)
        try:
            train(state, batches, evaluate, checkpoints, manifest, metrics, stop_asked)
        finally:
            metrics.close()

    if checkpoints.latest() is None:
        print("no checkpoint was saved: the validation loss never improved")
        return
    print(f"checkpoints: {checkpoints.folder}, the last at iter {checkpoints.latest()}")
    print(f"sample from it: python sample.py --out_dir={options.out_dir}")


def train(
    state: TrainState,
    batches: StepBatches,
    evaluate: Callable[[GPT], dict[str, float]],
    checkpoints: Checkpoints,
    manifest: Manifest,
    metrics: Metrics,
    stop_asked: Callable[[int], bool],
) -> None:
    """Train from `state` to `max_iters`, or until asked to stop. At the end all checkpoints are on disk."""
    options = manifest.options
    step = compile_step(state, options)
    reuse_freed_memory(step.compiled)
    profile = Profile(options.profile, step.compiled, metrics)
    i = start = int(state.step)
    while True:
        if (i % options.eval_interval == 0 or i == options.max_iters) and not metrics.evaluated(i):
            metrics.catch_up()
            losses = evaluate(state.model)
            metrics.evaluation(i, losses)
            manifest, improved = manifest.after_evaluation(losses["val"])
            if i > 0 and (improved or options.always_save_checkpoint):
                metrics.saved(checkpoints.save(state, manifest, losses["val"]))
        stopping = stop_asked(i)
        if i >= options.max_iters or stopping:
            break
        with profile.step(i - start):
            with metrics.making_batch():
                x, y = batches(i)
            state, report = step(state, x, y, options)
            metrics.step(i, report, batches.epoch(i))  # reads step i - 1's report, while step i runs
        i += 1

    metrics.catch_up()
    profile.close(i - start)
    if stopping:
        if checkpoints.latest() != i:
            checkpoints.save(state, manifest)
        metrics.say(f"stopped at iter {i}; go on with --out_dir={options.out_dir} --init_from=resume")
    checkpoints.wait()


def parameter_count(model: GPT) -> str:
    """Say how many parameters the model has, how many of them are trained, and on which device."""
    everything, trainable = (
        sum(x.size for x in jax.tree.leaves(tree)) for tree in (model, partition_trainable(model)[0])
    )
    part = "" if trainable == everything else f", of which {trainable:,} are trained,"
    return f"{everything:,} parameters{part} on {jax.devices()[0].device_kind}"


if __name__ == "__main__":
    command(main)
