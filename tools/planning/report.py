"""Format a plan as text. Every figure is planned; none was measured."""

import jax

from config.devices import GIB, PRICES_READ
from runs.sizes import flops_per_token
from tools.planning.cost import Cost
from tools.planning.fit import Memory, Planned
from tools.planning.speeds import COVERED, expect, short
from tools.planning.target import Target

CHINCHILLA = 20  # tokens per parameter at which a FLOP teaches most (arXiv:2203.15556)


def describe(planned: Planned) -> str:
    options, target, compute = planned.options, planned.target, planned.config.compute
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    head = (
        f"A plan for {target.count} x {target.device.name} ({target.device.kind}): "
        "what XLA's compiler makes of the step.\nNothing was run, and nothing below was measured.\n\n"
        f"{planned.parameters / 1e6:.2f}M parameters, vocab_size {planned.config.vocab_size}, "
        f"{A} x {B} x {T} = {planned.tokens:,} tokens per step\n"
        f"mesh={options.mesh}, attention={compute.attention}, remat={compute.remat}, "
        f"dtype={compute.dtype}; compiled in {planned.seconds:.0f} s by JAX {jax.__version__}"
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
    if target.device.is_gpu and memory.fits and memory.peak > 0.75 * target.device.memory:
        lines.append("JAX takes 75% of a GPU: run it with export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95")
    return "\n".join([f"\n{'memory of a device':32}{'GiB':>10}", *lines])


def time_table(cost: Cost) -> str:
    seconds = cost.seconds
    head = f"{'ms':>9}{'share':>7}{'TFLOP':>9}{'GB':>9}{'GB sent':>9}{'kernels':>9}  bound by"
    lines = [f"\n{'time of a step at best':32}{head}"]
    for row in cost.by_class().itertuples():
        lines.append(
            f"{row.Index:32}{1e3 * row.seconds:9.2f}{row.seconds / seconds:7.0%}{row.flops / 1e12:9.2f}"
            f"{row.bytes / 1e9:9.2f}{row.sent / 1e9:9.2f}{row.kernels:9,}  {row.bound}"
        )
    lines.append(f"{'sum':32}{1e3 * seconds:9.2f}")
    if cost.hidden_seconds < seconds:
        lines.append(f"{'with copies and network hidden':32}{1e3 * cost.hidden_seconds:9.2f}")
    return "\n".join(lines)


def assumptions(target: Target) -> str:
    if target.measured:
        return "(at the rates that products, memory and small operations have here, measured before)"
    device, shares = target.device, target.shares
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
        "tokens/s": lambda s: planned.tokens / s,
        f"hours, {steps:,} steps": lambda s: steps * s / 3600,
    }
    if planned.config.compute.dtype == "bfloat16" and not options.lora_rank:  # its peak; all weights learn
        flops = planned.tokens * flops_per_token(planned.config, options.block_size) / target.count
        figures[f"MFU, % of {peak}"] = lambda s: 100 * flops / s / device.peak
    if device.price:
        figures[f"dollars, {steps:,} steps"] = lambda s: steps * s / 3600 * target.count * device.price
    head = f"  expected ({COVERED:.0%} of published runs lie between)" if expected else ""
    lines = [f"\n{'a run':32}{'at best':>9}{head}"]
    for name, of in figures.items():
        spread = f"  {expected.spread(of)}" if expected else ""
        lines.append(f"{name:32}{short(of(cost.hidden_seconds)):>9}{spread}")
    tokens = planned.tokens * steps
    each = f"{short(tokens / planned.parameters)} per parameter (Chinchilla: {CHINCHILLA})"
    lines.append(f"{'tokens':32}{short(tokens / 1e9):>9}  billion, {each}")
    if device.price:
        source = f"{device.price_source}, {PRICES_READ}"
        lines.append(f"{'price':32}{device.price:9.2f}  dollars an hour a device ({source})")
    return "\n".join([*lines, f"evidence: {expected.evidence}"] if expected else lines)
