"""Time training on this machine: the very step that train.py runs, on batches of random tokens.

    python bench.py config/train_shakespeare_char_cpu.py              ms/step, tokens/s, FLOP/s, memory
    python bench.py config/train_shakespeare_char_cpu.py --vs=torch   and next to nanoGPT's step in PyTorch
    python bench.py config/train_shakespeare_char_cpu.py --loop       and what train.py's loop adds to it
    python bench.py config/quickstart.py --loop --profile=DIR         and a trace of three of the loop's steps
    python bench.py config/train_shakespeare_char_cpu.py --decode     sampling, with and without a cache
    python bench.py config/quickstart.py --serve                      the server, once that has trained

It takes train.py's config files and options too. `--steps=N` times at least N steps of each variant; the
default is about 10 seconds' worth, and at least 3. `--vocab_size` need not be given for a prepared data set.
`--losses` prints the losses of ten steps on one batch, to be compared with another machine's. `--json=FILE`
appends the figures, the command and the machine to a file, as one line of JSON.

Variants take turns, a block of about half a second each, so that other programs slow all of them alike. A
block is timed as one, because train.py does not wait for the device after every step either.
"""

from common.errors import UserError, command  # isort: split

import importlib.util
import json
import os
import platform
import shlex
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal

import jax
import numpy as np

from common.command_line import Count, Name, refuse_unused, take_options
from common.devices import count_cpus, describe_cpu, known_device
from common.files import check_writable, naming, write_whole
from config.options import Options, parse_options
from data.dataset import load_meta, prepare_if_missing
from model import GPTConfig
from parallel.machines import choose_device
from parallel.mesh import make_mesh
from runs.checkpoint import saved_options
from runs.metrics import count_parameters, flops_per_token
from runs.start import choose_config
from tools.benchmarks.generation import measure_decoding, measure_serving
from tools.benchmarks.variants import JaxStep, TrainLoop, rivals, take_turns

STEPS = 3  # that are traced
HLO = "train_step.hlo.txt"  # beside the trace
COLUMNS = {  # of what is printed, by the figure's name: title, width and format
    "ms": ("ms/step", 10, ".2f"),
    "min_ms": ("min", 10, ".2f"),
    "spread": ("spread", 9, ".0%"),
    "tokens_per_second": ("tokens/s", 12, ",.0f"),
    "of_pytorch": (" of PyTorch", 11, ".2f"),
    "first_token_ms": ("first token, ms", 20, ".1f"),
    "first_token_ms_p95": ("p95", 7, ".1f"),
    "between_parts_ms": ("between parts, ms", 20, ".1f"),
    "between_parts_ms_p95": ("p95", 7, ".1f"),
}

# Options that PyTorch's step here does not have.
JAX_ALONE = (
    *("optimizer", "mup_base_width", "document_mask", "window", "position", "norm"),
    *("norm_eps", "n_kv_head", "tie_embeddings", "lora_rank", "qk_norm", "head_dim", "qkv_bias"),
)

# Our own options that --decode and --serve do not use.
OF_STEP = ("vs", "steps", "loop", "profile", "losses")


@dataclass(frozen=True)
class BenchOptions:
    vs: Literal["torch"] | None = None
    steps: Count | None = None
    loop: bool = False
    profile: Name | None = None
    decode: bool = False
    serve: bool = False
    losses: bool = False
    json: Name | None = None


def main(argv: list[str]) -> None:
    if "--help" in argv or "-h" in argv:
        print(__doc__)
    own, words = take_options(argv, BenchOptions)
    bench = BenchOptions(**own)
    options = parse_options(words, saved_options=saved_options)
    typed = take_options(words, Options)[0]
    refuse_unused(typed, ("coordinator", "num_processes", "process_id"), ": one process is timed")
    if bench.decode and bench.serve:
        raise UserError("--decode and --serve are given: give one of them")
    if bench.decode or bench.serve:
        refuse_unused(own, OF_STEP, " is of the training step, not of --decode or --serve")
    if bench.serve:
        others = vars(options).keys() - {"out_dir", "dtype", "device"}
        refuse_unused(typed, others, " is not used: --serve times serve.py with the run in --out_dir")
    hlo = f"{bench.profile}/{HLO}" if bench.profile else None
    for path in filter(None, (bench.json, hlo)):
        check_writable(Path(path))
    if bench.vs:
        check_twin(options)
        # Otherwise JAX takes three quarters of a GPU's memory at once.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    choose_device(options.device, options.deterministic)
    with jax.set_mesh(make_mesh(options.mesh)):
        figures = measure_serving(options) if bench.serve else measure(bench, options)
        print_table(figures)
        if not (bench.serve or bench.decode):
            print_details(figures[0])
        if bench.json:
            with naming(Path(bench.json)), open(bench.json, "ab") as file:
                file.write(json.dumps(record(argv, figures)).encode() + b"\n")


def check_twin(options: Options) -> None:
    """Raise UserError without PyTorch, and for options with which its step would differ from ours."""
    if importlib.util.find_spec("torch") is None:
        raise UserError("--vs=torch needs PyTorch, which only tests and benchmarks use: pip install torch")
    changed = [name for name in JAX_ALONE if getattr(options, name) != getattr(Options, name)]
    changed += ["mlp"] if options.mlp not in ("swiglu", "gelu") else []
    if lacks := [f"{name}={getattr(options, name)}" for name in changed]:
        raise UserError(f"--vs=torch: PyTorch's step here does not have {', '.join(lacks)}: leave that out")


def measure(bench: BenchOptions, options: Options) -> list[dict[str, Any]]:
    """Measure what was asked for on the device mesh, and return the figures of each variant."""
    if bench.vs and jax.sharding.get_mesh().size > 1:
        raise UserError("--vs=torch compares on one device; add --mesh=data:1")
    if bench.loop:
        prepare_if_missing(options.dataset)
    config = choose_config(options, load_meta(options.dataset, options.vocab_size))
    print(describe(config, options))
    if bench.decode:
        return measure_decoding(config, options)
    step = JaxStep(config, options)
    losses = {"losses": step.losses(10)} if bench.losses else {}
    with ExitStack() as stack:
        variants: list = [step]
        if bench.loop:
            variants.append(TrainLoop(step, stack))
        if bench.vs:
            variants += rivals(step, stack)
        times = take_turns(variants, bench.steps)
        if bench.profile:
            record_trace(bench.profile, variants[1] if bench.loop else step, step.train_step)
    figures = [figures_of(variant, times[variant.name], step) for variant in variants]
    figures[0] |= losses
    theirs = [x["ms"] for x in figures if x["name"].startswith("PyTorch") and x["dtype"] == "float32"]
    for x in figures if theirs else ():
        x["of_pytorch"] = min(theirs) / x["ms"]
    if bench.loop:
        pairs = zip(times[step.name], times[TrainLoop.name], strict=True)  # neighbours in time
        figures[0]["loop_adds"] = median(loop / bare for bare, loop in pairs) - 1
    return figures


def record_trace(folder: str, variant: JaxStep | TrainLoop, compiled: jax.stages.Compiled) -> None:
    """Write a trace of some steps and the compiled step's HLO."""
    write_whole(Path(folder, HLO), compiled.as_text() or "")
    with jax.profiler.trace(folder, create_perfetto_trace=True):
        variant.run(STEPS)  # waits for what ran before it, and for its own end
    trace = f"{folder}/plugins/profile/*/perfetto_trace.json.gz"
    print(f"profile: {STEPS} steps, {variant.name}: open {trace} at https://ui.perfetto.dev")


def figures_of(variant: Any, seconds: list[float], step: JaxStep) -> dict[str, Any]:
    """Return a variant's figures, given the seconds of its steps; `mfu` is None where no peak is known."""
    middle, (low, high) = median(seconds), np.quantile(seconds, (0.1, 0.9))
    flops = flops_per_token(step.config, step.options.block_size) * step.tokens / middle
    known = known_device(jax.devices()[0].device_kind)
    comparable = variant.dtype == "bfloat16" and not step.options.lora_rank  # frozen weights have no gradient
    peak = known.peak if known and comparable else None
    figures = {
        "name": variant.name,
        "dtype": variant.dtype,
        "ms": 1e3 * middle,
        "min_ms": 1e3 * min(seconds),
        "spread": (high - low) / middle,
        "tokens": step.tokens,
        "tokens_per_second": step.tokens / middle,
        "flops_per_second": flops,
        "mfu": flops / jax.sharding.get_mesh().size / peak if peak else None,
    }
    if isinstance(variant, JaxStep):
        plan = variant.train_step.memory_analysis()
        needed = plan.argument_size_in_bytes + plan.temp_size_in_bytes if plan else 0
        figures |= {"compile_seconds": variant.compile_seconds, "memory_bytes": needed}
    return figures


def record(argv: list[str], figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what `--json` writes: the command, where it ran and with what, and its figures."""
    here = shlex.quote(str(Path(__file__).parent))
    failed, commit = subprocess.getstatusoutput(f"git -C {here} rev-parse HEAD")
    return {
        "command": shlex.join(["python", "bench.py", *argv]),
        "devices": jax.sharding.get_mesh().size,
        "device": jax.devices()[0].device_kind,
        "cpu": describe_cpu(),
        "cores": count_cpus(),
        "versions": {"jax": version("jax"), "jaxlib": version("jaxlib"), "python": platform.python_version()},
        "commit": None if failed else commit,
        "date": date.today().isoformat(),
        "figures": figures,
    }


def describe(config: GPTConfig, options: Options) -> str:
    device = jax.devices()[0]
    A, B, T = options.gradient_accumulation_steps, options.batch_size, options.block_size
    return (
        f"{jax.sharding.get_mesh().size} x {device.device_kind}, {describe_cpu()}, "
        f"JAX {jax.__version__}, Python {platform.python_version()}\n"
        f"{count_parameters(config) / 1e6:.2f}M parameters, vocab_size {config.vocab_size}, "
        f"{A} x {B} x {T} = {options.tokens_per_step:,} tokens per step"
    )


def print_table(figures: list[dict[str, Any]]) -> None:
    columns = {name: column for name, column in COLUMNS.items() if name in figures[0]}
    print(f"\n{'':32}" + "".join(f"{title:>{width}}" for title, width, _ in columns.values()))
    for x in figures:
        cells = [f"{x[name]:{width}{form}}" for name, (_, width, form) in columns.items()]
        print(f"{x['name']:32}" + "".join(cells))


def print_details(step: dict[str, Any]) -> None:
    """Print what else is known of the JAX step."""
    lines = {"the loop adds": f"{step['loop_adds']:.2%}"} if "loop_adds" in step else {}
    lines |= {
        "model FLOP/s": f"{step['flops_per_second'] / 1e12:.3g} TFLOP/s",
        "MFU": f"{step['mfu']:.1%}" if step["mfu"] else "none: no known peak, float32, or frozen weights",
        "compile time": f"{step['compile_seconds']:.1f} s",
        "memory": f"{step['memory_bytes'] / 1e6:,.0f} MB (XLA's plan: arguments and temporaries)",
    }
    if "losses" in step:
        lines["losses"] = " ".join(f"{loss:.6f}" for loss in step["losses"])
    print("\n".join([f"\n{step['name']}", *(f"{name:32}{text}" for name, text in lines.items())]))


if __name__ == "__main__":
    command(main)
