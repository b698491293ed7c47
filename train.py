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
from contextlib import nullcontext
from dataclasses import replace

import jax

from config.command_line import command
from config.options import Options, parse_options
from evaluation.split import make_evaluate
from parallel.batches import StepBatches
from runs.hardware import on_devices, reuse_freed_memory, share_one_heap
from runs.load import save_merged, shape_of_weights
from runs.lock import locked
from runs.metrics import Metrics
from runs.profile import Profile
from runs.signals import stop_signals
from runs.start import Run, claim_folder, open_run, parameter_count, show_sharding, starting_state
from training.state import TrainState
from training.step import compile_step


def main(argv: list[str]) -> None:
    options = parse_options(argv, shape_of_weights)
    share_one_heap()
    with on_devices(options):
        if options.lora_merge is not None:
            iteration = save_merged(options.out_dir, options.lora_merge)
            print(f"iter {iteration} of {options.out_dir}, its adapters merged: {options.lora_merge}")
        elif options.show_sharding:
            show_sharding(options)
        else:
            start(options)


def start(options: Options) -> None:
    """Start a run or resume it, train, and leave checkpoints behind."""
    with nullcontext() if options.eval_only else locked(options.out_dir):
        run = open_run(options)
        batches = StepBatches(options)
        print(parameter_count(run))
        with stop_signals() as stop_asked:
            state, manifest = starting_state(run)
            run = replace(run, manifest=manifest)
            evaluate = make_evaluate(options, state.model)
            if options.eval_only:
                print(", ".join(f"{split} loss {loss:.4f}" for split, loss in evaluate(state.model).items()))
                return
            claim_folder(options, run.checkpoints)
            metrics = Metrics(options, int(state.step), run.config, jax.sharding.get_mesh().size)
            try:
                train(run, state, batches, evaluate, metrics, stop_asked)
            finally:
                metrics.close()

    if run.checkpoints.latest() is None:
        print("no checkpoint was saved: the validation loss never improved")
        return
    print(f"checkpoints: {run.checkpoints.folder}, the last at iter {run.checkpoints.latest()}")
    print(f"sample from it: python sample.py --out_dir={options.out_dir}")


def train(
    run: Run,
    state: TrainState,
    batches: StepBatches,
    evaluate: Callable[..., dict[str, float]],
    metrics: Metrics,
    stop_asked: Callable[[int], bool],
) -> None:
    """Train from `state` to `max_iters`, or until asked to stop. At the end all checkpoints are on disk."""
    options, checkpoints, manifest = run.options, run.checkpoints, run.manifest
    step = compile_step(state, options)
    reuse_freed_memory(step.compiled)
    profile = Profile(options.profile, step.compiled, metrics)
    i = start_iter = int(state.step)
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
        with profile.step(i - start_iter):
            with metrics.making_batch():
                x, y = batches(i)
            state, report = step(state, x, y, options)
            metrics.step(i, report, batches.epoch(i))  # reads step i - 1's report, while step i runs
        i += 1

    metrics.catch_up()
    profile.close(i - start_iter)
    if stopping:
        if checkpoints.latest() != i:
            checkpoints.save(state, manifest)
        metrics.say(f"stopped at iter {i}; go on with --out_dir={options.out_dir} --init_from=resume")
    checkpoints.wait()


if __name__ == "__main__":
    command(main)
