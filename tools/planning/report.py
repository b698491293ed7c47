"""Format a plan as text and as JSON. Every figure is planned; none was measured."""

from dataclasses import asdict
from typing import Any

import jax

from config.devices import GIB, PRICES_READ
from runs.sizes import flops_per_token
from tools.planning.cost import Cost, least_sent
from tools.planning.expected import COVERED, Expected, expect, short
from tools.planning.fit import Memory, Planned
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
        cost = planned.cost
        parts += [time_table(cost), assumptions(target), lines_table(cost), named(run_lines(planned, cost))]
        if not target.measured:
            parts += [named(expected_lines(planned, expect(cost.works, target.device)))]
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
    for row in cost.by_class():
        lines.append(
            f"{row.name:32}{1e3 * row.seconds:9.2f}{row.seconds / seconds:7.0%}{row.flops / 1e12:9.2f}"
            f"{row.bytes / 1e9:9.2f}{row.sent / 1e9:9.2f}{row.kernels:9,}  {row.bound}"
        )
    lines.append(f"{'sum':32}{1e3 * seconds:9.2f}")
    if cost.hidden_seconds < seconds:
        lines.append(f"{'with copies and network hidden':32}{1e3 * cost.hidden_seconds:9.2f}")
    if cost.unknown_loops:
        lines.append(f"{cost.unknown_loops} loops have no trip count and count once: this is too low")
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


def lines_table(cost: Cost) -> str:
    lines = [f"\n{'ms':>9}{'share':>7}  the costliest lines"]
    for row in cost.by_line()[:10]:
        share = row.seconds / cost.seconds
        lines.append(f"{1e3 * row.seconds:9.2f}{share:7.0%}  {row.name}, {row.bound}-bound")
    return "\n".join(lines)


def named(lines: dict[str, str]) -> str:
    return "\n" + "\n".join(f"{name:32}{text}" for name, text in lines.items())


def run_lines(planned: Planned, cost: Cost) -> dict[str, str]:
    figures, device = run_figures(planned, cost), planned.target.device
    steps = f"{planned.options.max_iters:,} steps, at least"
    lines = {"tokens/s, at most": f"{figures['tokens_per_second']:,.0f}"}
    if figures["mfu"]:
        lines["MFU, at most"] = f"{figures['mfu']:.1%} of {device.peak / 1e12:.3g} TFLOP/s"
    lines[steps] = f"{short(figures['hours'])} h"
    if device.price:
        price = f"${device.price:.2f} an hour a device ({device.price_source}, {PRICES_READ})"
        lines[steps] += f", ${short(figures['dollars'])} at {price}"
    tokens = figures["tokens"]
    each = f"{short(tokens / planned.parameters)} per parameter (Chinchilla: {CHINCHILLA})"
    lines["tokens"] = f"{short(tokens / 1e9)} billion, {each}"
    for axes, (sent, least) in figures["sent"].items():
        times = f", {sent / least:.2f} times the least, {least / 1e9:.2f}" if least else ""
        lines[f"sent along {axes}"] = f"{sent / 1e9:.2f} GB a step{times}"
    return lines


def expected_lines(planned: Planned, expected: Expected) -> dict[str, str]:
    """Say how fast the step would be with the speeds of published runs."""
    steps, target = planned.options.max_iters, planned.target
    price = steps / 3600 * target.count * target.device.price  # of a second more in each step
    step, hours = expected.spread(lambda s: 1e3 * s), expected.spread(lambda s: steps * s / 3600)
    return {
        "ms a step, expected": f"{step}: {COVERED:.0%} of published runs would lie so",
        "tokens/s, expected": expected.spread(lambda s: planned.tokens / s),
        f"{steps:,} steps, expected": f"{hours} h, {expected.spread(lambda s: price * s, unit='$')}",
        "evidence": expected.evidence,
    }


def summary(planned: Planned) -> str:
    need = f"{planned.memory.peak / GIB:.2f} of {planned.memory.available / GIB:.2f} GiB"
    if planned.cost is None:
        return need
    seconds = planned.cost.hidden_seconds
    return f"{need}, {1e3 * seconds:.1f} ms a step, {planned.tokens / seconds:,.0f} tokens/s at most"


def run_figures(planned: Planned, cost: Cost) -> dict[str, Any]:
    """Return what the step's time means for a run; `mfu` only where the known peak is that of the dtype."""
    options, config, target = planned.options, planned.config, planned.target
    seconds, device = cost.hidden_seconds, target.device
    hours = seconds * options.max_iters / 3600
    flops = planned.tokens * flops_per_token(config, options.block_size) / target.count
    microbatches, whole = options.gradient_accumulation_steps, not options.lora_rank  # all weights learn
    least = least_sent(config, planned.mesh_shape, microbatches, planned.parameters) if whole else {}
    sent = {axes: (cost.sent_along(axes), least.get(axes)) for axes in (*least, "data,fsdp")}
    return {
        "tokens_per_second": planned.tokens / seconds,
        "hours": hours,
        "dollars": hours * target.count * device.price,
        "tokens": float(planned.tokens * options.max_iters),
        "mfu": flops / seconds / device.peak if config.compute.dtype == "bfloat16" and whole else None,
        "sent": {axes: figures for axes, figures in sent.items() if any(figures)},  # in bytes, and at least
    }


def as_json(planned: Planned) -> dict[str, Any]:
    """Return what is printed, in bytes, seconds, FLOPs and dollars."""
    cost, target = planned.cost, planned.target
    found = {
        "about": "planned by XLA's compiler for devices that are not there; nothing was measured",
        "device": target.device.name,
        "devices": target.count,
        "mesh": planned.mesh_shape,
        "options": vars(planned.options),
        "compute": asdict(planned.config.compute),
        "parameters": planned.parameters,
        "jax": jax.__version__,
        "memory": asdict(planned.memory) | {"fits": planned.memory.fits},
    }
    if cost:
        found |= {
            "seconds": cost.seconds,
            "seconds_network_hidden": cost.hidden_seconds,
            "unknown_loops": cost.unknown_loops,
            "classes": [row._asdict() for row in cost.by_class()],
            "lines": [row._asdict() for row in cost.by_line()],
            "run": run_figures(planned, cost),
            "expected": None if target.measured else expect(cost.works, target.device)._asdict(),
        }
    return found
