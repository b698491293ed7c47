"""Format a plan as text, as JSON and as a picture. Every figure is planned; none was measured."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from config.devices import GIB, PRICES_READ
from config.files import write_whole, written
from runs.sizes import flops_per_token
from tools.planning.cost import MEMORY, NETWORK, PRODUCT, START, Cost, Row
from tools.planning.fit import Memory, Planned
from tools.planning.ideal import least_sent, sent_along
from tools.planning.target import Target

CHINCHILLA = 20  # tokens per parameter at which a FLOP teaches most (arXiv:2203.15556)
HLO = "train_step.hlo.txt"
# The share of a GPU's memory that JAX takes if XLA_PYTHON_CLIENT_MEM_FRACTION does not say otherwise.
GPU_SHARE = 0.75


def describe(planned: Planned, target: Target, parameters: int) -> str:
    options, config, device = planned.options, planned.config, target.device
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    compute = config.compute
    return (
        f"A plan for {target.count} x {device.name} ({device.kind}): what XLA's compiler makes of the step.\n"
        "Nothing was run, and nothing below was measured.\n\n"
        f"{parameters / 1e6:.2f}M parameters, vocab_size {config.vocab_size}, "
        f"{A} x {B} x {T} = {A * B * T:,} "
        f"tokens per step\nmesh={options.mesh}, attention={compute.attention}, remat={compute.remat}, "
        f"dtype={compute.dtype}; compiled in {planned.seconds:.0f} s by JAX {jax.__version__}"
    )


def memory_table(memory: Memory, target: Target) -> str:
    if memory.temporaries is None:
        return f"\nIt does not fit: {out_of_memory(memory, target)}"
    rows = {
        "weights": memory.weights,
        "optimizer": memory.optimizer,
        "temporaries": memory.temporaries,
        "batch, code, padding": memory.rest,
        "peak": memory.peak,
    }
    lines = [f"{name:32}{size / GIB:10.2f}" for name, size in rows.items()]
    verdict = "it fits" if memory.fits else "it does not fit"
    lines[-1] += f" of {memory.available / GIB:.2f}: {verdict}"
    if target.device.is_gpu and memory.fits and memory.peak > GPU_SHARE * target.device.memory:
        lines.append("JAX takes 75% of a GPU: run it with export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95")
    return "\n".join([f"\n{'memory of a device':32}{'GiB':>10}", *lines])


def out_of_memory(memory: Memory, target: Target) -> str:
    """Say what is needed and what is there, as in "needs 18.2 GiB, a v5e has 15.75"."""
    return f"needs {memory.peak / GIB:.1f} GiB, a {target.device.name} has {memory.available / GIB:.2f}"


def time_table(cost: Cost) -> str:
    """Format the classes of work: of one device, in one step, at best."""
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
    start = f", {1e6 * START:.1f} microseconds a kernel" if target.device.is_gpu else ""
    network = f", {NETWORK:.0%} of a link's {target.device.link / 1e9:.0f} GB/s" if target.count > 1 else ""
    return (
        f"(at {PRODUCT:.0%} of {target.device.peak / 1e12:.0f} TFLOP/s, {MEMORY:.0%} of "
        f"{target.device.bandwidth / 1e12:.3g} TB/s{network}{start}; loops times their trip count)"
    )


def costliest(rows: list[Row], seconds: float) -> str:
    """Format the ten most expensive operations, with the line of our code that made each."""
    lines = [f"\n{'ms':>9}{'share':>7}  the costliest lines"]
    for row in rows[:10]:
        lines.append(f"{1e3 * row.seconds:9.2f}{row.seconds / seconds:7.0%}  {row.name}, {row.bound}-bound")
    return "\n".join(lines)


def run_figures(planned: Planned, target: Target, parameters: int) -> dict[str, float]:
    """Return what the step's time means for a run: `mfu` is None where the peak is not that of the dtype."""
    assert planned.cost is not None
    options, cost = planned.options, planned.cost
    tokens = options.gradient_accumulation_steps * options.batch_size * options.block_size
    flops = flops_per_token(planned.config, options.block_size) * tokens
    hours = cost.hidden_seconds * options.max_iters / 3600
    figures = {
        "tokens_per_second": tokens / cost.hidden_seconds,
        "tokens_per_second_network_not_hidden": tokens / cost.seconds,
        "hours": hours,
        "dollars": hours * target.count * target.device.price,
        "tokens": float(tokens * options.max_iters),
        "tokens_per_parameter": tokens * options.max_iters / parameters,
    }
    if planned.config.compute.dtype == "bfloat16" and not options.lora_rank:
        figures["mfu"] = flops / cost.hidden_seconds / target.count / target.device.peak
    return figures


def sent_figures(planned: Planned, parameters: int) -> dict[str, tuple[float, float | None]]:
    """Return what a device sends along each mesh axis, and the least, in bytes. With LoRA none is known.

    What is summed over `data` and `fsdp` at once stands by itself, and has no least.
    """
    options = planned.options
    if planned.cost is None or options.lora_rank:
        return {}
    microbatches = options.gradient_accumulation_steps
    least = least_sent(planned.config, planned.mesh_shape, microbatches, parameters)
    figures = {axis: (sent_along(planned.cost, axis), size) for axis, size in least.items()}
    together = sent_along(planned.cost, "data,fsdp")
    return figures | ({"data,fsdp": (together, None)} if together else {})


def short(number: float) -> str:
    """Format a number with three digits, or all before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def run_table(planned: Planned, target: Target, parameters: int) -> str:
    figures = run_figures(planned, target, parameters)
    device, options = target.device, planned.options
    lines = {"tokens/s, at most": f"{figures['tokens_per_second']:,.0f}"}
    if "mfu" in figures:
        lines["MFU, at most"] = f"{figures['mfu']:.1%} of {device.peak / 1e12:.0f} TFLOP/s"
    lines[f"{options.max_iters:,} steps, at least"] = (
        f"{short(figures['hours'])} h, ${short(figures['dollars'])} at ${device.price:.2f} an hour a device "
        f"({device.price_source}, {PRICES_READ})"
    )
    lines["tokens"] = (
        f"{short(figures['tokens'] / 1e9)} billion, {short(figures['tokens_per_parameter'])} per parameter "
        f"(Chinchilla: {CHINCHILLA})"
    )
    for axis, (sent, least) in sent_figures(planned, parameters).items():
        lines[f"sent along {axis}"] = f"{sent / 1e9:.2f} GB a step" + (
            f", {sent / least:.2f} times the least, {least / 1e9:.2f}" if least else ""
        )
    return "\n" + "\n".join(f"{name:32}{text}" for name, text in lines.items())


def as_json(planned: Planned, target: Target, parameters: int) -> dict[str, Any]:
    """Return all that is printed, in bytes, seconds, FLOPs and dollars."""
    cost = planned.cost
    found: dict[str, Any] = {
        "about": "planned by XLA's compiler for devices that are not there; nothing was measured",
        "device": target.device.name,
        "devices": target.count,
        "mesh": planned.mesh_shape,
        "options": planned.options.to_json(),
        "attention": planned.config.compute.attention,
        "dtype": planned.config.compute.dtype,
        "parameters": parameters,
        "jax": jax.__version__,
        "compile_seconds": planned.seconds,
        "memory": asdict(planned.memory) | {"fits": planned.memory.fits},
        "efficiency": {"products": PRODUCT, "memory": MEMORY, "network": NETWORK, "kernel_seconds": START},
    }
    if cost:
        found |= {
            "seconds": cost.seconds,
            "seconds_network_hidden": cost.hidden_seconds,
            "unknown_loops": cost.unknown_loops,
            "classes": [asdict(row) for row in cost.by_class()],
            "lines": [asdict(row) for row in cost.by_line()],
            "run": run_figures(planned, target, parameters),
            "sent": {
                axis: {"bytes": sent, "least": least}
                for axis, (sent, least) in sent_figures(planned, parameters).items()
            },
        }
    return found


def draw(planned: Planned, target: Target, path: Path) -> None:
    """Draw the time of each class of work as bars, into a PNG file."""
    from matplotlib.figure import Figure  # here, because it takes half a second and is asked for

    assert planned.cost is not None
    rows = planned.cost.by_class()[::-1]
    axes = (figure := Figure(figsize=(7, 0.5 * len(rows) + 1.5), layout="constrained")).subplots()
    bars = axes.barh([row.name for row in rows], [1e3 * row.seconds for row in rows])
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.margins(x=0.1)
    axes.set(
        xlabel="ms of a step, at best: planned, not measured",
        title=f"{target.count} x {target.device.name}: {1e3 * planned.cost.seconds:.1f} ms a step",
    )
    with written(path, "choose another place for the picture") as file:
        figure.savefig(file, format="png", dpi=120)


def write_hlo(planned: Planned, folder: Path) -> Path:
    path = folder / HLO
    write_whole(path, planned.text or "", "choose another --hlo")
    return path


def summary(planned: Planned, target: Target) -> str:
    """Return a plan in a few words: what it needs, and how fast it can be."""
    need = f"{planned.memory.peak / GIB:.2f} of {planned.memory.available / GIB:.2f} GiB"
    if planned.cost is None:
        return need
    options = planned.options
    tokens = options.gradient_accumulation_steps * options.batch_size * options.block_size
    seconds = planned.cost.hidden_seconds
    return f"{need}, {1e3 * seconds:.1f} ms a step, {tokens / seconds:,.0f} tokens/s at most"
