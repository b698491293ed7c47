"""Time training on this machine: the very step that train.py runs, on batches of random tokens.

    python bench.py config/train_shakespeare_char_cpu.py              ms/step, tokens/s, FLOP/s, memory
    python bench.py config/train_shakespeare_char_cpu.py --vs=torch   and next to nanoGPT's step in PyTorch
    python bench.py config/train_shakespeare_char_cpu.py --loop       and what train.py's loop adds to it
    python bench.py config/train_shakespeare_char_cpu.py --decode     sampling, with and without a cache
    python bench.py config/quickstart.py --serve                      the server, once that has trained

It takes train.py's config files and options too, and `--steps=N`: the timed steps of each variant, without
which there are about 10 seconds' worth, at least 3. `--vocab_size` need not be given for a prepared data set.

Variants take turns, a block of about half a second each, so that other programs slow all of them alike. A
block is timed as one, because train.py does not wait for the device after every step either.
"""

import importlib.util
import os
import platform
import re
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Literal

import jax
import numpy as np

from config.command_line import Count, UserError, command, split_options
from config.devices import peak_flops
from config.options import Options, parse_options
from data.dataset import load_meta
from data.tokenizer import end_of_text
from model import GPTConfig
from parallel.mesh import check_fit, make_mesh
from parallel.pipeline.loop import make_pipeline
from runs.hardware import choose_device, describe_cpu
from runs.sizes import flops_per_token
from tools.benchmarks.generation import report_decoding, report_serving
from tools.benchmarks.variants import JaxStep, TrainLoop, rivals, take_turns
from training.state import model_config

# Options that PyTorch's step here does not have.
JAX_ALONE = (
    *("optimizer", "attention_gate", "mup_base_width", "document_mask", "window"),
    *("rope_scaling", "norm_eps", "lora_rank", "qk_norm"),
)


@dataclass(frozen=True)
class BenchOptions:
    """The options that are bench.py's own."""

    vs: Literal["torch"] | None = None
    steps: Count | None = None
    loop: bool = False
    decode: bool = False
    serve: bool = False


def main(argv: list[str]) -> None:
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    bench, argv = split_options(argv, BenchOptions)
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


def check_twin(options: Options) -> None:
    """Raise UserError without PyTorch, and for options with which its step would be another one than ours."""
    if importlib.util.find_spec("torch") is None:
        raise UserError("--vs=torch needs PyTorch, which only tests and benchmarks use: pip install torch")
    given = {name: getattr(options, name) for name in JAX_ALONE}
    lacks = [f"{name}={value}" for name, value in given.items() if value != getattr(Options, name)]
    if lacks:
        raise UserError(f"--vs=torch: PyTorch's step here does not have {', '.join(lacks)}: leave that out")


def measure(bench: BenchOptions, options: Options) -> None:
    """Measure what was asked for on the device mesh, and print it."""
    if bench.vs and jax.sharding.get_mesh().size > 1:
        raise UserError("--vs=torch compares on one device; add --mesh=data:1")
    meta = load_meta(options.dataset, options.vocab_size)
    config = model_config(options, meta.vocab_size, end_of_text(meta.tokenizer))
    check_fit(jax.sharding.get_mesh(), config, options.batch_size, options.gradient_accumulation_steps)
    make_pipeline(options)  # raises UserError for one that cannot be
    print(describe(config, options))
    if bench.decode:
        return report_decoding(config, options)
    step = JaxStep(config, options)
    with ExitStack() as stack:
        variants: list = [step]
        if bench.loop:
            variants.append(TrainLoop(step, stack))
        if bench.vs:
            variants += rivals(step, stack)
        times = take_turns(variants, bench.steps)
    print(table(times, step.tokens))
    if bench.loop:
        pairs = zip(times[step.name], times[TrainLoop.name], strict=True)  # neighbours in time
        print(f"{'the loop adds':28}{median(loop / bare for bare, loop in pairs) - 1:10.2%}")
    print(details(step, median(times[step.name])))


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
    """Format ms per step, tokens/s at the median, and next to PyTorch's best in float32.

    The spread leaves out a tenth at either end.
    """
    medians = {name: median(seconds) for name, seconds in times.items()}
    best = min((medians[name] for name in times if re.fullmatch("PyTorch .* float32", name)), default=None)
    rows = [f"\n{'':28}{'ms/step':>10}{'min':>10}{'spread':>9}{'tokens/s':>12}{' of PyTorch' * bool(best)}"]
    for name, seconds in times.items():
        low, high = np.quantile(seconds, (0.1, 0.9))
        rows.append(
            f"{name:28}{1e3 * medians[name]:10.2f}{1e3 * min(seconds):10.2f}"
            f"{(high - low) / medians[name]:9.0%}{tokens / medians[name]:12,.0f}"
            + (f"{best / medians[name]:10.2f}x" if best else "")
        )
    return "\n".join(rows)


def details(step: JaxStep, seconds: float) -> str:
    """Describe the step that takes `seconds`."""
    flops = flops_per_token(step.config, step.options.block_size)
    per_second = flops * step.tokens / seconds
    lines = {
        "model FLOP/s": f"{per_second / 1e12:.3g} TFLOP/s, {flops / 1e6:.4g} MFLOP per token",
        "MFU": mfu(per_second / jax.sharding.get_mesh().size, step.dtype, jax.devices()[0].device_kind),
        "compile time": f"{step.compile_seconds:.1f} s",
    }
    if plan := step.train_step.memory_analysis():
        needed = plan.argument_size_in_bytes + plan.temp_size_in_bytes
        lines["memory"] = f"{needed / 1e6:,.0f} MB (XLA's plan: arguments and temporaries)"
    return "\n".join([f"\n{step.name}", *(f"{name:28}{text}" for name, text in lines.items())])


def mfu(flops_per_second: float, dtype: str, device_kind: str) -> str:
    """Express model FLOP/s as a share of the device's peak, which is known for bfloat16 alone."""
    peak = peak_flops(device_kind)
    if dtype != "bfloat16" or peak is None:
        return f"none: config/devices.py has no peak of {device_kind} in {dtype}"
    return f"{flops_per_second / peak:.1%} of {peak / 1e12:.0f} TFLOP/s"


if __name__ == "__main__":
    command(main)
