"""Plan a run for hardware that you do not have: whether it fits, what a step does, what it should cost.

    python plan.py config/train_gpt2.py --on=H100                         one GPU
    python plan.py config/train_gpt2.py --on=H100:8 --batch_size=96 --gradient_accumulation_steps=5
    python plan.py config/quickstart.py --on=v5e:4x4 --mesh=fsdp:16       a slice of a TPU pod

It compiles the step that train.py would run with the device's own compiler, which needs no device. The step
is not run: its time is that of other people's runs, by their share of the device's peak (docs/planning.md).

It takes train.py's options (--vocab_size: by default a prepared data set's, or 50304), and one of these:

    --on=DEVICE       RTX4090, L4, A100-40GB, A100, H100-PCIe, H100, H200, B200, with :N for N of them;
                      v5e, v5p, v6e, with a topology, as in v5e:2x4 or v5p:2x2x2
    --show_sharding   print what each device of --mesh, on this machine, holds of each array

A step that does not fit is planned again with another mesh, smaller microbatches and --remat, until it does.
The compilers are a download of their own: pip install -r requirements-plan.txt
"""

from common.errors import UserError, command  # isort: split

from dataclasses import dataclass, replace

import jax

from common.command_line import Name, refuse_unused, take_options
from config.options import Options, parse_options
from data.dataset import Meta, load_meta
from model import leaf_name
from parallel.machines import choose_device
from parallel.mesh import make_mesh
from runs.checkpoint import saved_options
from runs.metrics import count_parameters, flops_per_token
from runs.start import choose_config
from tools.planning.fit import GIB, Memory, Planned, bytes_held, changes_that_save, plan
from tools.planning.published import MIDDLE, published_mfu
from tools.planning.target import GPUS, PRICES_READ, Target, parse_target, prepare_to_compile
from training.state import state_shapes


@dataclass(frozen=True)
class PlanOptions:
    on: Name | None = None
    show_sharding: bool = False


def main(argv: list[str]) -> None:
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    values, argv = take_options(argv, PlanOptions)
    own = PlanOptions(**values)
    options = parse_options(argv, saved_options=saved_options)
    if own.show_sharding:
        refuse_unused(values, ["on"], ", beside --show_sharding: it is of this machine's devices")
        return show_sharding(options)
    if own.on is None:
        raise UserError("--on is missing: the device to plan for, as in --on=H100; see --help")
    target = parse_target(own.on)
    prepare_to_compile()
    meta = load_meta(options.dataset, options.vocab_size)
    planned = plan(options, target, meta)
    print(describe(planned))
    if not planned.memory.fits:
        show_remedies(planned, meta)


def show_sharding(options: Options) -> None:
    choose_device(options.device)
    with jax.set_mesh(make_mesh(options.mesh)):
        config = choose_config(options, load_meta(options.dataset, options.vocab_size))
        print(sharding_table(state_shapes(config, options).model))


def show_remedies(planned: Planned, meta: Meta) -> None:
    """Plan the step with options that need less memory, one more at a time, until it fits."""
    target = planned.target
    for changes in changes_that_save(planned.options, target.count):
        print("\ntrying", *(f"--{option}={value}" for option, value in changes.items()), flush=True)
        other = plan(replace(planned.options, **changes), target, meta)
        if other.memory.fits:
            return print(describe(other))
        needed, available = other.memory.peak / GIB, other.memory.available / GIB
        print(f"needs {needed:.2f} GiB of {available:.2f}: it does not fit")
    print("\nNone of these fits: take more devices, or a device with more memory.")


def describe(planned: Planned) -> str:
    options, target, how = planned.options, planned.target, planned.how
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    head = (
        f"A plan for {target.count} x {target.device.name} ({target.device.kind}): "
        "what XLA's compiler makes of the step. Nothing was run.\n\n"
        f"{count_parameters(planned.config) / 1e6:.2f}M parameters, vocab_size {planned.config.vocab_size}, "
        f"{A} x {B} x {T} = {options.tokens_per_step:,} tokens per step\n"
        f"mesh={options.mesh}, attention={how.kernel}, remat={how.remat}, dtype={how.dtype}, "
        f"JAX {jax.__version__}"
    )
    parts = [head, memory_table(planned.memory, target)]
    if planned.memory.temporaries is not None:
        parts += [step_table(planned), run_table(planned)]
    return "\n".join(parts)


def memory_table(memory: Memory, target: Target) -> str:
    if memory.temporaries is None:
        need = f"needs {memory.peak / GIB:.1f} GiB"
        return f"\nIt does not fit: {need}, a {target.device.name} has {memory.available / GIB:.2f}"
    rows = {
        "weights": memory.weights,
        "optimizer": memory.optimizer,
        "temporaries": memory.temporaries,
        "batch, code, padding": memory.peak - memory.weights - memory.optimizer - memory.temporaries,
        "peak": memory.peak,
    }
    lines = [f"{name:32}{size / GIB:10.2f}" for name, size in rows.items()]
    lines[-1] += f" of {memory.available / GIB:.2f}: {'it fits' if memory.fits else 'it does not fit'}"
    if target.device.name in GPUS and memory.fits and memory.peak > 0.75 * target.device.memory:
        lines.append("JAX takes 75% of a GPU: run it with export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95")
    return "\n".join([f"\n{'memory of a device':32}{'GiB':>10}", *lines])


def sharding_table(shapes) -> str:
    """Describe each array of a tree from `with_shardings` in a line."""
    lines = [f"{'parameter':<32} {'shape':<20} {'spec':<30} MB per device"]
    for path, x in jax.tree.leaves_with_path(shapes):
        spec = f"P({', '.join(str(axis) for axis in x.sharding.spec)})"
        lines.append(f"{leaf_name(path):<32} {x.shape!s:<20} {spec:<30} {bytes_held(x) / 1e6:.3f}")
    return "\n".join([*lines, f"{'all':<84} {bytes_held(shapes) / 1e6:.3f}"])


def step_table(planned: Planned) -> str:
    """Say what a device computes and sends in a step."""
    rows = {
        "model, TFLOP": model_flops(planned) / 1e12,
        "program, TFLOP": planned.flops / planned.target.count / 1e12,
    }
    for x in sorted(planned.sent, key=lambda x: x.axes):
        name = f"sent along {x.axes}, GB"
        rows[name] = rows.get(name, 0) + x.times * x.sent / 1e9
    lines = [f"{name:32}{short(x):>10}" for name, x in rows.items()]
    return "\n".join(["\na device's part of a step", *lines])


def model_flops(planned: Planned) -> float:
    """Return the FLOPs of a device's part of a step by the formula, without what is computed again."""
    options = planned.options
    flops = options.tokens_per_step * flops_per_token(planned.config, options.block_size)
    return flops / planned.target.count


def run_table(planned: Planned) -> str:
    """Say how long a run takes and what it costs at the MFU of published runs."""
    options, target, device = planned.options, planned.target, planned.target.device
    parameters, steps = count_parameters(planned.config), options.max_iters
    tokens = options.tokens_per_step * steps
    # At 20 tokens per parameter a FLOP lowers the loss most (arXiv:2203.15556).
    ratio = f"{short(tokens / parameters)} per parameter (Chinchilla: 20)"
    each = f"{short(tokens / 1e9)} billion tokens, {ratio}"
    if planned.how.dtype != "bfloat16" or options.lora_rank:  # its peak or its FLOPs differ
        return f"\n{each}\nno time: the published runs train all weights, in bfloat16"
    found, columns = published_mfu(device), []
    for mfu in (found.median, found.low, found.high):
        seconds = model_flops(planned) / (mfu * device.peak)
        hours = steps * seconds / 3600
        figures = {
            f"MFU, % of {device.peak / 1e12:.3g} TFLOP/s": 100 * mfu,
            "ms a step": 1e3 * seconds,
            "tokens/s": options.tokens_per_step / seconds,
            f"hours, {steps:,} steps": hours,
            f"dollars, {steps:,} steps": hours * target.count * device.price,
        }
        columns.append(figures)
    lines = [f"\n{'a run':32}{'median':>10}  middle {MIDDLE:.0%} of published runs"]
    for name, median in columns[0].items():
        low, high = sorted(column[name] for column in columns[1:])
        lines.append(f"{name:32}{short(median):>10}  {short(low)} to {short(high)}")
    lines.append(f"{each}; ${device.price:.2f} an hour a device ({device.price_source}, {PRICES_READ})")
    lines.append(f"evidence: {found.evidence}, in tools/planning/published.csv")
    if parameters < found.least:
        lines.append("This model is smaller than any of theirs: expect a lower MFU.")
    return "\n".join(lines)


def short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


if __name__ == "__main__":
    command(main)
