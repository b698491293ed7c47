"""Plan a run for hardware that you do not have: whether it fits, how fast it can be at best, what it costs.

    python plan.py config/train_gpt2.py --on=H100                    one GPU
    python plan.py config/train_gpt2.py --on=H100:8 --mesh=fsdp:8    eight
    python plan.py config/train_gpt2.py --on=v5e:4x8                 a slice of a TPU pod
    python plan.py config/quickstart.py --on=here                    this machine
    python plan.py config/train_gpt2.py --budget=50 --until=val3.28  which devices do it, the cheapest first

It compiles the step that train.py would run with the device's own compiler, which needs no device. The step
is not run: every figure is planned, and none is measured. docs/planning.md says what the figures count.

It takes train.py's config files and options (without --vocab_size, the vocabulary is the data set's, or 50304
if that is not prepared), and these of its own:

    --on=DEVICE       RTX4090, L4, A100-40GB, A100, H100-PCIe, H100, H200, B200, with :N for N of them;
                      v5e, v5p, v6e, with a topology, as in v5e:2x4 or v5p:2x2x2;
                      here: this machine, a CPU with peaks that are measured in two seconds
    --budget=DOLLARS  instead of --on: find the devices that should train the model for no more,
    --hours=HOURS     or in no more time,
    --until=GOAL      until it has a val loss, as in val3.28 (an estimate, for GPT-2's tokens of the web), or
                      has seen as many tokens, as in 10e9; without this, for max_iters steps
    --for=CONFIG      a config file, as without the option's name
    --show_sharding   instead of --on: print what each device of --mesh, on this machine, holds of each array

A step that does not fit is planned again with another mesh, smaller microbatches and --remat, until it
does. The compilers are a download of their own: pip install -r requirements-plan.txt
"""

from common.errors import UserError, command  # isort: split

import math
from dataclasses import dataclass, replace

import jax

from common.command_line import Name, Positive, take_options
from config.options import Options, parse_options
from data.dataset import Meta, load_meta
from model import leaf_name
from parallel.machines import choose_device
from parallel.mesh import make_mesh
from runs.checkpoint import saved_options
from runs.metrics import count_parameters, flops_per_token
from runs.start import choose_config
from tools.planning.cost import Cost
from tools.planning.fit import GIB, Memory, Planned, changes_that_save, plan
from tools.planning.goals import PRICES_READ, goal_table, tokens_until, ways
from tools.planning.speeds import AT_BEST, COVERED, expect, family_of, short
from tools.planning.target import Target, parse_target, prepare_to_compile, this_machine
from training.state import model_config, state_shapes


@dataclass(frozen=True)
class PlanOptions:
    on: Name | None = None
    budget: Positive | None = None
    hours: Positive | None = None
    until: Name | None = None
    show_sharding: bool = False


def main(argv: list[str]) -> None:
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    values, argv = take_options([word.removeprefix("--for=") for word in argv], PlanOptions)
    own = PlanOptions(**values)
    options = parse_options(argv, saved_options=saved_options)
    if own.show_sharding:
        return show_sharding(options)
    if own.budget or own.hours:
        return show_ways(own, options)
    if own.until:
        raise UserError("--until needs --budget or --hours; see --help")
    if own.on is None:
        raise UserError("--on is missing: the device to plan for, as in --on=H100; see --help")
    if own.on == "here":
        choose_device(options.device)
        target = this_machine()
    else:
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


def show_ways(own: PlanOptions, options: Options) -> None:
    """Plan every device of the table, and print those that reach the goal."""
    if own.on:
        raise UserError(f"--on={own.on}: with --budget or --hours, all devices are planned; leave it out")
    meta = load_meta(options.dataset, options.vocab_size)
    prepare_to_compile()
    tokens = float(options.tokens_per_step * options.max_iters)
    if own.until:
        tokens = tokens_until(own.until, model_config(options, options.vocab_size or meta.vocab_size))
    limits = [f"${own.budget:g}"] if own.budget else []
    limits += [f"{own.hours:g} hours"] if own.hours else []
    found = ways(options, meta, tokens, own.budget or math.inf, own.hours or math.inf)
    print(goal_table(found, tokens, f"within {' and '.join(limits)}"))


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
    options, target = planned.options, planned.target
    how = planned.how
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    head = (
        f"A plan for {target.count} x {target.device.name} ({target.device.kind}): "
        "what XLA's compiler makes of the step.\nNothing was run, and nothing below was measured.\n\n"
        f"{count_parameters(planned.config) / 1e6:.2f}M parameters, vocab_size {planned.config.vocab_size}, "
        f"{A} x {B} x {T} = {options.tokens_per_step:,} tokens per step\n"
        f"mesh={options.mesh}, attention={how.kernel}, remat={how.remat}, "
        f"dtype={how.dtype}; compiled in {planned.seconds:.0f} s by JAX {jax.__version__}"
    )
    parts = [head, memory_table(planned.memory, target)]
    if planned.cost:
        parts += [time_table(planned.cost), assumptions(target), run_table(planned, planned.cost)]
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
    if family_of(target.device) == "gpu" and memory.fits and memory.peak > 0.75 * target.device.memory:
        lines.append("JAX takes 75% of a GPU: run it with export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95")
    return "\n".join([f"\n{'memory of a device':32}{'GiB':>10}", *lines])


def sharding_table(shapes) -> str:
    """Describe each array of a tree from `with_shardings` in a line."""
    lines = [f"{'parameter':<32} {'shape':<20} {'spec':<30} MB per device"]
    total = 0
    for path, x in jax.tree.leaves_with_path(shapes):
        size = math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        total += size
        spec = f"P({', '.join(str(axis) for axis in x.sharding.spec)})"
        lines.append(f"{leaf_name(path):<32} {x.shape!s:<20} {spec:<30} {size / 1e6:.3f}")
    return "\n".join([*lines, f"{'all':<84} {total / 1e6:.3f}"])


def time_table(cost: Cost) -> str:
    seconds = cost.seconds
    head = f"{'ms':>9}{'share':>7}{'TFLOP':>9}{'GB':>9}{'GB sent':>9}{'kernels':>9}  bound by"
    lines = [f"\n{'time of a step at best':32}{head}"]
    for name, row in cost.by_class().iterrows():
        lines.append(
            f"{name:32}{1e3 * row.seconds:9.2f}{row.seconds / seconds:7.0%}{row.flops / 1e12:9.2f}"
            f"{row.bytes / 1e9:9.2f}{row.sent / 1e9:9.2f}{row.kernels:9,}  {row.bound}"
        )
    lines.append(f"{'sum':32}{1e3 * seconds:9.2f}")
    if cost.hidden_seconds < seconds:
        lines.append(f"{'with copies and network hidden':32}{1e3 * cost.hidden_seconds:9.2f}")
    return "\n".join(lines)


def assumptions(target: Target) -> str:
    if target.measured:
        return "(at the rates that products, memory and small operations have here, measured now)"
    device, shares = target.device, AT_BEST[family_of(target.device)]
    start = f", {1e6 * shares.kernel:.1f} microseconds a kernel" if shares.kernel else ""
    network = f", {shares.network:.0%} of a link's {device.link / 1e9:.0f} GB/s" if target.count > 1 else ""
    return (
        f"(at {shares.products:.0%} of {device.peak / 1e12:.0f} TFLOP/s, {shares.memory:.0%} of "
        f"{device.bandwidth / 1e12:.3g} TB/s{network}{start}; loops times their trip count)"
    )


def run_table(planned: Planned, cost: Cost) -> str:
    """Say what the time of a step means for a run: at best, and at the speeds of published runs."""
    options, target, device = planned.options, planned.target, planned.target.device
    expected = None if target.measured else expect(cost.works, device)
    steps, peak = options.max_iters, f"{device.peak / 1e12:.3g} TFLOP/s"
    figures = {
        "ms a step": lambda s: 1e3 * s,
        "tokens/s": lambda s: options.tokens_per_step / s,
        f"hours, {steps:,} steps": lambda s: steps * s / 3600,
    }
    if planned.how.dtype == "bfloat16" and not options.lora_rank:  # else its peak or FLOPs differ
        flops = options.tokens_per_step * flops_per_token(planned.config, options.block_size) / target.count
        figures[f"MFU, % of {peak}"] = lambda s: 100 * flops / s / device.peak
    if device.price:
        figures[f"dollars, {steps:,} steps"] = lambda s: steps * s / 3600 * target.count * device.price
    head = f"  expected ({COVERED:.0%} of published runs lie between)" if expected else ""
    lines = [f"\n{'a run':32}{'at best':>9}{head}"]
    for name, of in figures.items():
        spread = f"  {expected.spread(of)}" if expected else ""
        lines.append(f"{name:32}{short(of(cost.hidden_seconds)):>9}{spread}")
    tokens = options.tokens_per_step * steps
    each = short(tokens / count_parameters(planned.config))
    # At 20 tokens per parameter a FLOP lowers the loss most (arXiv:2203.15556).
    lines.append(f"{'tokens':32}{short(tokens / 1e9):>9}  billion, {each} per parameter (Chinchilla: 20)")
    if device.price:
        source = f"{device.price_source}, {PRICES_READ}"
        lines.append(f"{'price':32}{device.price:9.2f}  dollars an hour a device ({source})")
    return "\n".join([*lines, f"evidence: {expected.evidence}"] if expected else lines)


if __name__ == "__main__":
    command(main)
