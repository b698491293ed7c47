"""Plan a run for hardware that you do not have: whether it fits, how fast it can be at best, what it costs.

    python plan.py config/train_gpt2.py --on=H100                    one GPU
    python plan.py config/train_gpt2.py --on=H100:8 --mesh=fsdp:8    eight
    python plan.py config/train_gpt2.py --on=v5e:4x8                 a slice of a TPU pod
    python plan.py config/quickstart.py --on=here                    this machine
    python plan.py config/train_gpt2.py --budget=50 --until=val3.28  which devices do it, the cheapest first

Compiles the very step that train.py would run, with the device's own compiler, which needs no device. The
step is not run: every figure is a plan, and none is measured. What the figures count: docs/planning.md.

Takes train.py's config files and options (without --vocab_size, the vocabulary is the data set's, or 50304
if that is not prepared), and these of its own:

    --on=DEVICE       RTX4090, L4, A100-40GB, A100, H100-PCIe, H100, H200, B200, with :N for N of them;
                      v5e, v5p, v6e, with a topology, as in v5e:2x4 or v5p:2x2x2;
                      here: the CPU or GPU of this machine, with peaks that are measured in two seconds
    --budget=DOLLARS  instead of --on: find the devices that should train the model for no more,
    --hours=HOURS     or in no more time,
    --until=GOAL      until it has a val loss, as in val3.28 (an estimate, for GPT-2's tokens of the web), or
                      has read as many tokens, as in 10e9; without this, for max_iters steps
    --for=CONFIG      a config file, as without the option's name

A step that does not fit is planned again with another mesh, smaller microbatches and --remat, until it
does. The compilers are a download of their own: pip install -r requirements-plan.txt
"""

import math
from dataclasses import dataclass, replace
from functools import partial

from config.command_line import Name, Positive, UserError, command, split_options
from config.devices import GIB
from config.options import Options, parse_options
from data.dataset import load_meta
from runs.hardware import choose_device
from tools.planning.fit import Planned, changes_that_save, plan
from tools.planning.goals import goal_table, tokens_until, ways
from tools.planning.here import this_machine
from tools.planning.report import describe
from tools.planning.target import parse_target, prepare_to_compile
from training.state import model_config

say = partial(print, flush=True)


@dataclass(frozen=True)
class PlanOptions:
    """The options that are plan.py's own."""

    on: Name | None = None
    budget: Positive | None = None
    hours: Positive | None = None
    until: Name | None = None


def main(argv: list[str]) -> None:
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    own, argv = split_options([word.removeprefix("--for=") for word in argv], PlanOptions)
    options = parse_options(argv)
    if own.budget or own.hours:
        return show_ways(own, options)
    if own.until:
        raise UserError("--until needs --budget or --hours; see --help")
    if own.on is None:
        raise UserError("--on is missing: the device to plan for, as in --on=H100; see --help")
    target = parse_target(own.on) if own.on != "here" else None
    if target:
        prepare_to_compile()
    else:
        choose_device(options.device)
        target = this_machine()
    meta = load_meta(options.dataset, options.vocab_size)
    planned = plan(options, target, meta)
    say(describe(planned))
    if not planned.memory.fits:
        show_remedies(planned)


def show_ways(own: PlanOptions, options: Options) -> None:
    """Plan every device of the table, and print those that reach the goal."""
    if own.on:
        raise UserError(f"--on={own.on}: with --budget or --hours, all devices are planned; leave it out")
    meta = load_meta(options.dataset, options.vocab_size)
    prepare_to_compile()
    rows = options.gradient_accumulation_steps * options.batch_size
    tokens = float(rows * options.block_size * options.max_iters)
    if own.until:
        tokens = tokens_until(own.until, model_config(options, meta.vocab_size))
    limits = [f"${own.budget:g}"] if own.budget else []
    limits += [f"{own.hours:g} hours"] if own.hours else []
    found = ways(options, meta, tokens, own.budget or math.inf, own.hours or math.inf)
    print(goal_table(found, tokens, f"within {' and '.join(limits)}"))


def show_remedies(planned: Planned) -> None:
    """Plan the step with options that need less memory, one more at a time, until it fits."""
    say("\nwhat needs less:")
    for changes in changes_that_save(planned.options, planned.target.count):
        other = plan(replace(planned.options, **changes), planned.target, planned.meta)
        words = " ".join(f"--{option}={value}" for option, value in changes.items())
        fits = other.memory.fits
        say(f"{words}: {other.memory.peak / GIB:.2f} GiB, {'it fits' if fits else 'it does not fit'}")
        if fits:
            return
    say("None of these fits: take more devices, or a device with more memory.")


if __name__ == "__main__":
    command(main)
