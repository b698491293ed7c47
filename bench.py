"""Time training on this machine: the very step that train.py runs, on batches of random tokens.

    python bench.py config/train_shakespeare_char_cpu.py              ms/step, tokens/s, FLOP/s, memory
    python bench.py config/train_shakespeare_char_cpu.py --vs=torch   and next to nanoGPT's step in PyTorch
    python bench.py config/train_shakespeare_char_cpu.py --loop       and what train.py's loop adds to it
    python bench.py config/train_shakespeare_char_cpu.py --decode     sampling with and without a cache
    python bench.py config/train_shakespeare_char_cpu.py --memory     what remat and microbatches save
    python bench.py config/quickstart.py --serve                      the server, once that has trained

It takes train.py's config files and options, and these of its own:

    --vs=torch        measure PyTorch's step as well, eager and compiled, in float32 and bfloat16
    --steps=N         timed steps of each variant; without it, about 10 seconds' worth, and at least 3
    --vocab_size=N    size of the vocabulary; without it, the data set's, or 50304 if that is not prepared
    --loop            measure train.py's loop as well: it makes the batches and writes the records
    --decode          time sampling instead of training
    --memory          the step's memory as XLA plans it, in variants that need less; none is run
    --serve           time serve.py and the engine on the run in out_dir, next to transformers' generate

Variants take turns, a block of about half a second each, so that other programs slow all of them alike. A
block is timed as one, because train.py does not wait for the device after every step either.
"""

import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import importlib.util
import os
import platform
import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Literal

import jax
import numpy as np

from config.command_line import Count, UserError, command, split_options
from config.devices import peak_flops
from config.options import Options, parse_options
from data.dataset import Dataset, dataset_dir, is_prepared, load_meta
from data.tokenizer import end_of_text
from model import GPTConfig
from parallel.batches import StepBatches
from parallel.mesh import check_fit, make_mesh
from parallel.pipeline.loop import make_pipeline
from runs.hardware import choose_device, describe_cpu
from runs.sizes import check_training, flops_per_token
from tools.benchmarks.counted import counted_flops, report_memory
from tools.benchmarks.generation import report_decoding, report_serving
from tools.benchmarks.variants import JaxStep, TorchStep, TrainLoop, rivals, take_turns
from tools.planning.cost import estimate
from tools.planning.program import parse_program
from tools.planning.target import target_here
from training.state import model_config

# Options that PyTorch's step here does not have.
JAX_ALONE = (
    *("optimizer", "attention_gate", "mup_base_width", "document_mask", "window"),
    *("rope_scaling", "norm_eps", "lora_rank"),
)


@dataclass(frozen=True)
class BenchOptions:
    """The options that are bench.py's own."""

    vs: Literal["torch"] | None = None
    steps: Count | None = None
    vocab_size: Count | None = None
    loop: bool = False
    decode: bool = False
    memory: bool = False
    serve: bool = False


def main(argv: list[str]) -> None:
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    bench, argv = split_options(argv, BenchOptions)
    check_rival(bench)
    options = parse_options(argv)
    if bench.vs:
        check_twin(options)
        # Else JAX takes three quarters of a GPU's memory at once.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    choose_device(options.device)
    with jax.set_mesh(make_mesh(options.mesh)):
        if bench.serve:
            report_serving(options)
        else:
            measure(bench, options)


def check_rival(bench: BenchOptions) -> None:
    """Raise UserError for `--vs=torch` without PyTorch."""
    if bench.vs and importlib.util.find_spec("torch") is None:
        raise UserError("--vs=torch needs PyTorch, which only tests and benchmarks use: pip install torch")


def check_twin(options: Options) -> None:
    """Raise UserError for options with which PyTorch's step would be another one than ours."""
    given = {name: getattr(options, name) for name in JAX_ALONE}
    lacks = [f"{name}={value}" for name, value in given.items() if value != getattr(Options, name)]
    if lacks:
        raise UserError(f"--vs=torch: PyTorch's step here does not have {', '.join(lacks)}: leave that out")


def measure(bench: BenchOptions, options: Options) -> None:
    """Measure what was asked for on the device mesh, and print it."""
    if bench.vs and jax.sharding.get_mesh().size > 1:
        raise UserError("--vs=torch compares on one device; add --mesh=data:1")
    meta = load_meta(options.dataset, bench.vocab_size or options.vocab_size)
    config = model_config(options, meta.vocab_size, end_of_text(meta.tokenizer))
    check_training(config, options, planned=bench.memory)
    check_fit(jax.sharding.get_mesh(), config, options.batch_size, options.gradient_accumulation_steps)
    make_pipeline(options)  # raises UserError for one that cannot be
    print(describe(config, options))
    if bench.memory:
        return report_memory(config, options)
    if bench.decode:
        return report_decoding(config, options)
    step = JaxStep(config, options)
    step.run(1)
    memory = describe_memory(step.train_step)  # before anything else takes any
    with ExitStack() as stack:
        variants = [step]
        if bench.loop:
            variants.append(TrainLoop(step, stack))
            variants[-1].run(1)
        if bench.vs:
            variants += rivals(step, stack)
        times = take_turns(variants, bench.steps)
    print(table(times, tokens_per_step(options)))
    if bench.vs:
        print(ratios(variants, times))
    if bench.loop:
        print(f"{'the loop adds':28}{overhead(times[step.name], times[TrainLoop.name]):10.2%}")
    print(details(step, median(times[step.name]), memory))


def tokens_per_step(options: Options) -> int:
    return options.gradient_accumulation_steps * options.batch_size * options.block_size


# What is printed


def describe(config: GPTConfig, options: Options) -> str:
    device = jax.devices()[0]
    model = jax.eval_shape(lambda: config.build(jax.random.key(0)))
    parameters = sum(x.size for x in jax.tree.leaves(model))
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    return (
        f"{jax.sharding.get_mesh().size} x {device.device_kind}, {describe_cpu()}, "
        f"JAX {jax.__version__}, Python {platform.python_version()}\n"
        f"{parameters / 1e6:.2f}M parameters, vocab_size {config.vocab_size}, "
        f"{A} x {B} x {T} = {A * B * T:,} tokens per step"
    )


def table(times: dict[str, list[float]], tokens: int) -> str:
    """Format ms per step, and tokens/s at the median. The spread leaves out a tenth at either end."""
    rows = [f"\n{'':28}{'ms/step':>10}{'min':>10}{'spread':>9}{'tokens/s':>12}"]
    for name, seconds in times.items():
        low, middle, high = np.quantile(seconds, (0.1, 0.5, 0.9))
        least, spread = 1e3 * min(seconds), (high - low) / middle
        rows.append(f"{name:28}{1e3 * middle:10.2f}{least:10.2f}{spread:9.0%}{tokens / middle:12,.0f}")
    return "\n".join(rows)


def overhead(bare: list[float], loop: list[float]) -> float:
    """Return the share that the loop adds to the bare step: the median over turns, of neighbours in time."""
    return median(b / a for a, b in zip(bare, loop, strict=True)) - 1


def ratios(variants: list, times: dict[str, list[float]]) -> str:
    """Compare the JAX steps' tokens/s with those of PyTorch's best float32 variant, by medians."""
    medians = {name: median(seconds) for name, seconds in times.items()}
    torch = [v.name for v in variants if isinstance(v, TorchStep) and v.dtype == "float32"]
    if not torch:
        return "\nno ratio: no float32 variant of PyTorch runs here"
    best = min(torch, key=medians.__getitem__)
    ours = [v.name for v in variants if isinstance(v, JaxStep)]
    lines = [f"{name:28}{medians[best] / medians[name]:10.2f}x" for name in ours]
    return "\n".join([f"\nratio vs best float32 PyTorch ({best}), in tokens/s", *lines])


def details(step: JaxStep, seconds: float, memory: str) -> str:
    """Describe the step that takes `seconds`: FLOP/s, MFU, compile time, memory, data loading."""
    options, tokens = step.options, tokens_per_step(step.options)
    flops = flops_per_token(step.config, options.block_size) * tokens  # of a step
    counted = counted_flops(step.config, options)
    per_device = flops / seconds / jax.sharding.get_mesh().size
    lines = {
        "model FLOP/s": f"{flops / seconds / 1e12:.3g} TFLOP/s, {flops / tokens / 1e6:.4g} MFLOP per token",
        "MFU": mfu(per_device, step.dtype, jax.devices()[0].device_kind),
        "planned": planned(step.train_step),
        "FLOPs that XLA counts": f"{counted / flops:.1%} of these" if counted else "none without a CPU",
        "compile time": f"{step.compile_seconds:.1f} s",
        "peak memory": memory,
        "data loading": data_loading(options, seconds),
    }
    return "\n".join([f"\n{step.name}", *(f"{name:28}{text}" for name, text in lines.items())])


def mfu(flops_per_second: float, dtype: str, device_kind: str) -> str:
    """Express model FLOP/s as a share of the device's peak, or say why there is none."""
    if dtype != "bfloat16":
        return f"none for {dtype}: the known peaks are bfloat16's"
    if (peak := peak_flops(device_kind)) is None:
        return f"none: the peak of {device_kind} is not in config/devices.py"
    return f"{flops_per_second / peak:.1%} of {peak / 1e12:.0f} TFLOP/s"


def planned(compiled: jax.stages.Compiled) -> str:
    """Return the step's time as plan.py estimates it, to be read next to what was measured."""
    mesh = jax.sharding.get_mesh()
    target = target_here(jax.devices()[0].device_kind, mesh.size)
    if target is None:
        return f"none: {jax.devices()[0].device_kind} is not in config/devices.py"
    cost = estimate(parse_program(compiled.as_text() or ""), target, dict(mesh.shape))
    return f"{1e3 * cost.hidden_seconds:.2f} to {1e3 * cost.seconds:.2f} ms at best (docs/planning.md)"


def describe_memory(compiled: jax.stages.Compiled) -> str:
    """Return what the device has held at most; on a CPU, which does not tell, what XLA plans for a step."""
    if stats := jax.devices()[0].memory_stats():
        return f"{stats['peak_bytes_in_use'] / 1e6:,.0f} MB (the device's count)"
    if (plan := compiled.memory_analysis()) is None:
        return "not known of this device"
    needed = plan.argument_size_in_bytes + plan.temp_size_in_bytes
    return f"{needed / 1e6:,.0f} MB (XLA's plan: arguments and temporaries)"


def data_loading(options: Options, seconds: float) -> str:
    """Time the making of a step's batch, which happens while the device works on the step before."""
    if not is_prepared(dataset_dir(options.dataset)):
        return f"not measured: data set {options.dataset} is not prepared"
    batches, times = StepBatches(options, Dataset(options.dataset)), [time.perf_counter()]
    for i in range(100):
        batches(i)
        times.append(time.perf_counter())
    loading = median(np.diff(times))
    return f"{1e3 * loading:.3f} ms per step, {loading / seconds:.2%} of it"


if __name__ == "__main__":
    command(main)
