"""Plan a run for hardware that you do not have: whether it fits, how fast it can be at best, what it costs.

    python plan.py config/train_gpt2.py --on=H100                    one GPU
    python plan.py config/train_gpt2.py --on=H100:8 --mesh=fsdp:8    eight
    python plan.py config/train_gpt2.py --on=v5e:4x8                 a slice of a TPU pod
    python plan.py config/train_gpt2.py --on=H100 --decode --batch_size=8

Compiles the very step that train.py would run, with the device's own compiler, which needs no device. The
step is not run: every figure is a plan, and none is measured. What the figures count: docs/planning.md.

Takes train.py's config files and options, and these of its own:

    --on=DEVICE       RTX4090, L4, A100-40GB, A100, H100-PCIe, H100, H200, B200, with :N for N of them;
                      v5e, v5p, v6e, with a topology, as in v5e:2x4 or v5p:2x2x2
    --largest         find the largest microbatch that fits as well
    --decode          sampling instead: what a token reads, and so how many a second at most
    --vocab_size=N    size of the vocabulary; without it, the data set's, or 50304 if that is not prepared
    --json=FILE       write all figures there as well
    --picture=FILE    draw the time of each class of work into a PNG file
    --hlo=DIR         write the compiled program there, as text

A step that does not fit is planned again with another mesh, smaller microbatches and --remat, to see what
does. The compilers are a download of their own: pip install -r requirements-plan.txt
"""

import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import json
from dataclasses import dataclass
from pathlib import Path

import jax

from config.command_line import Count, Name, UserError, command, split_options
from config.files import check_writable, write_whole
from config.options import Options, parse_options
from data.dataset import Meta, load_meta
from tools.planning import report
from tools.planning.decoding import decoding_table, plan_decoding
from tools.planning.fit import Planned, largest, plan, remedies
from tools.planning.target import Target, parse_target, prepare_to_compile


def main(argv: list[str]) -> None:
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    own, argv = split_options(argv, PlanOptions)
    options = parse_options(argv)
    if own.on is None:
        raise UserError("--on is missing: the device to plan for, as in --on=H100; see --help")
    target = parse_target(own.on)
    check_outputs(own)
    prepare_to_compile()
    meta = load_meta(options.dataset, own.vocab_size or options.vocab_size)
    if own.decode:
        print(decoding_table(plan_decoding(options, target, meta), target))
        return
    show(own, options, target, meta)


def check_outputs(own: "PlanOptions") -> None:
    """Raise UserError for a file that could not be written: better now than after minutes of compiling."""
    hlo = f"{own.hlo}/{report.HLO}" if own.hlo else None
    for name, path in (("json", own.json), ("picture", own.picture), ("hlo", hlo)):
        if path:
            check_writable(Path(path), f"choose another --{name}")


def show(own: "PlanOptions", options: Options, target: Target, meta: Meta) -> None:
    """Plan the step, print and write what was asked for, and look for what fits."""
    planned = plan(options, target, meta)
    parameters = count_parameters(planned)
    print(report.describe(planned, target, parameters), flush=True)
    print_plan(planned, target, parameters)
    if own.json:
        figures = report.as_json(planned, target, parameters)
        write_whole(Path(own.json), json.dumps(figures, indent=1), "choose another --json")
    if own.picture and planned.cost:
        report.draw(planned, target, Path(own.picture))
    if own.hlo and planned.text:
        print(f"\nwrote {report.write_hlo(planned, Path(own.hlo))}")
    if own.largest:
        show_largest(planned, target, meta)
    elif not planned.memory.fits:
        show_remedies(planned, target, meta)


def print_plan(planned: Planned, target: Target, parameters: int) -> None:
    print(report.memory_table(planned.memory, target))
    if planned.cost:
        print(report.time_table(planned.cost))
        print(report.assumptions(target))
        print(report.costliest(planned.cost.by_line(), planned.cost.seconds))
        print(report.run_table(planned, target, parameters))


def show_remedies(planned: Planned, target: Target, meta: Meta) -> None:
    """Plan the step with options that need less memory, and say which make it fit, the fastest first."""
    print("\nwhat needs less:", flush=True)
    fitting = []
    for name, other in remedies(planned, target, meta):
        verdict = "fits" if other.memory.fits else "does not fit"
        print(f"{name:64}{report.summary(other, target)}: {verdict}", flush=True)
        if other.memory.fits and other.cost:
            fitting.append((other.cost.hidden_seconds, name))
    if fitting:
        print(f"\nThe fastest that fits: {min(fitting)[1]}")
    else:
        print("\nNone of these fits: take more devices, or a device with more memory.")


def show_largest(planned: Planned, target: Target, meta: Meta) -> None:
    best = largest(planned, target, meta, say=lambda text: print(text, flush=True))
    if best is None:
        print("\nNot even one row per device fits.")
        return
    print(f"\nThe largest microbatch that fits: --batch_size={best.options.batch_size}")
    print(f"{report.summary(best, target)}")


def count_parameters(planned: Planned) -> int:
    model = jax.eval_shape(lambda: planned.config.build(jax.random.key(0)))
    return sum(x.size for x in jax.tree.leaves(model))


# Options


@dataclass(frozen=True)
class PlanOptions:
    """The options that are plan.py's own."""

    on: Name | None = None
    vocab_size: Count | None = None
    largest: bool = False
    decode: bool = False
    json: Name | None = None
    picture: Name | None = None
    hlo: Name | None = None


if __name__ == "__main__":
    command(main)
