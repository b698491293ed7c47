"""Train a GPT.

    python train.py config/quickstart.py                        every option: python train.py --help
    python train.py config/quickstart.py --batch_size=32        --key=value overrides the config file
    python train.py --out_dir=out-quickstart --init_from=resume     resumes a run
    python train.py --init_from=gpt2 --dataset=shakespeare --out_dir=out-bard   starts from GPT-2's weights
    python train.py --init_from=out-bard --dataset=shakespeare --lora_rank=8 --out_dir=out-lora   with LoRA

SIGTERM and Ctrl-C save a checkpoint, then exit with status 143 or 130, so that a launcher can start the run
again; 0 means that max_iters is reached. On CPUs of one kind a resumed run's weights are, to the bit, those
of a run that never stopped: batches and dropout follow from the seed and the iteration alone.
"""

from config.command_line import command  # isort: split

from collections.abc import Callable
from contextlib import closing, nullcontext
from shlex import quote

import jax

from config.options import parse_options
from parallel.machines import on_devices, reuse_freed_memory
from runs.checkpoint import Manifest, saved_options
from runs.load import Run, open_run, shape_of_weights, starting_state
from runs.metrics import Metrics
from runs.process import locked, stop_signals
from training.evaluation import Evaluate, make_evaluate
from training.state import TrainState
from training.step import StepBatches, compile_step


def main(argv: list[str]) -> int:
    """Read the options, choose the devices, and train or evaluate. Return the exit status."""
    options = parse_options(argv, shape_of_weights, saved_options)
    with on_devices(options), nullcontext() if options.eval_only else locked(options.out_dir):
        run = open_run(options)
        with stop_signals() as stop_asked:
            state, manifest = starting_state(run)
            evaluate = make_evaluate(run.options, run.dataset, state.model)
            if options.eval_only:  # the losses of the model that training would begin with
                if losses := evaluate(state.model, stop_asked):
                    print(", ".join(f"{split} loss {loss:.4f}" for split, loss in losses.items()))
                return stop_asked()
            step = compile_step(state, run.options)
            reuse_freed_memory(step)  # a step is then faster on a CPU
            status = train(run, state, manifest, step, evaluate, stop_asked)
        if run.checkpoints.latest() is None:
            print("no checkpoint was saved: the validation loss was never below that of iter 0")
        else:
            print(f"checkpoints: {run.checkpoints.folder}, the last at iter {run.checkpoints.latest()}")
            print(f"sample from it: python sample.py --out_dir={quote(options.out_dir)}")
    return status


def train(
    run: Run,
    state: TrainState,
    manifest: Manifest,
    step: jax.stages.Compiled,
    evaluate: Evaluate,
    stop_asked: Callable[[], int],
) -> int:
    """Train from `state` to `max_iters` and return 0, or until asked to stop and return that status."""
    options, checkpoints = run.options, run.checkpoints
    batches = StepBatches(options, run.dataset)
    i = int(state.step)
    val_loss = checkpoints.loss(i) if run.resuming else None  # of step i's model; None: not evaluated yet
    devices = jax.sharding.get_mesh().size
    with closing(Metrics(options, i, run.config, devices, evaluated=val_loss is not None)) as metrics:
        if options.overwrite:
            checkpoints.delete_all()
        status = 0
        while True:
            if (i % options.eval_interval == 0 or i == options.max_iters) and val_loss is None:
                metrics.catch_up()  # reads the last step's report
                losses = evaluate(state.model, stop_asked)
                if losses is None:  # asked to stop: the resumed run begins with this evaluation
                    status = stop_asked()
                    break
                metrics.evaluation(i, losses)
                val_loss = losses["val"]
                manifest, improved = manifest.after_evaluation(val_loss)
                if (i > 0 or i == options.max_iters) and (improved or options.always_save_checkpoint):
                    checkpoints.save(state, manifest, val_loss)  # copies what the next step donates
            if i >= options.max_iters or (status := stop_asked()):
                break
            with metrics.making_batch():
                x, y = batches(i)  # (A, B, T): y is one token later
            state, report = step(state, x, y)
            metrics.step(i, report)  # reads step i - 1's report, while step i runs
            i, val_loss = i + 1, None

        metrics.catch_up()
        if status:
            checkpoints.save(state, manifest, val_loss)
            print(f"stopped at iter {i}; resume with --out_dir={quote(options.out_dir)} --init_from=resume")
        checkpoints.wait()
    return status


if __name__ == "__main__":
    command(main)
