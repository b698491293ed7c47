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

from common.errors import command  # isort: split

from contextlib import nullcontext
from shlex import quote

from common.command_line import take_options
from config.options import Options, parse_options, refuse_idle
from parallel.machines import on_devices, reuse_freed_memory
from runs.checkpoint import saved_options
from runs.loop import NextToken, run_loop
from runs.process import locked, stop_signals
from runs.start import open_run, shape_of_weights, starting_state, warn_of_hours
from training.evaluation import make_evaluate
from training.step import compile_step


def main(argv: list[str]) -> int:
    """Read the options, choose the devices, and train or evaluate. Return the exit status."""
    options = parse_options(argv, shape_of_weights, saved_options)
    refuse_idle(take_options(argv, Options)[0], options)
    with on_devices(options), nullcontext() if options.eval_only else locked(options.out_dir):
        run = open_run(options)
        if not options.eval_only:
            warn_of_hours(run)
        with stop_signals() as stop_asked:
            state, manifest = starting_state(run)
            evaluate = make_evaluate(run.options, run.dataset, state.model)
            if options.eval_only:  # the losses of the model that training would begin with
                if losses := evaluate(state.model, stop_asked):
                    print(", ".join(f"{split} loss {loss:.4f}" for split, loss in losses.items()))
                return stop_asked()
            step = compile_step(state, run.options)
            reuse_freed_memory(step)  # a step is then faster on a CPU
            status = run_loop(run, state, manifest, NextToken(run, step, evaluate), stop_asked)
        if run.checkpoints.latest() is None:
            print("no checkpoint was saved: the validation loss was never below that of iter 0")
        else:
            print(f"checkpoints: {run.checkpoints.folder}, the last at iter {run.checkpoints.latest()}")
            if manifest.tokenizer is not None:  # else its tokens are not text
                print(f"sample from it: python sample.py --out_dir={quote(options.out_dir)}")
    return status


if __name__ == "__main__":
    command(main)
