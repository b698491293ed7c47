"""A table for docs/planning.md: which models fit which devices, how fast at best, and at what price.

    python -m tools.planning.table --on=H100,v5e:2x4 --models=gpt2,llama-1b

For each model and devices it takes the first of a few settings that fits: 16, 8, 4, 2 or 1 sequences of 1024
tokens (Llama: 2048) on each device, with `--mesh=fsdp` over all of them, without and with `--remat=block`.
Layers are in a loop (`--unroll=1`): large models take long to compile otherwise. Nothing of it is measured.
"""

import sys
from dataclasses import dataclass, replace

from config.command_line import Name, UserError, command, split_options
from config.devices import GIB
from config.options import Options
from data.dataset import NANOGPT, Meta
from tools.planning.fit import Planned, plan
from tools.planning.report import run_figures, short
from tools.planning.target import Target, parse_target, prepare_to_compile

GPT2 = dict(mlp="gelu", bias=True, block_size=1024)
LLAMA = dict(position="rope", norm="rmsnorm", mlp="swiglu", tie_embeddings=False, block_size=2048)
MODELS = {
    "gpt2": GPT2 | dict(n_layer=12, n_head=12, n_embd=768),  # 124M
    "gpt2-medium": GPT2 | dict(n_layer=24, n_head=16, n_embd=1024),  # 350M
    "gpt2-large": GPT2 | dict(n_layer=36, n_head=20, n_embd=1280),  # 774M
    "gpt2-xl": GPT2 | dict(n_layer=48, n_head=25, n_embd=1600),  # 1.5B
    "llama-1b": LLAMA | dict(n_layer=24, n_head=16, n_embd=2048, n_hidden=5504),  # 1.3B
    "llama-7b": LLAMA | dict(n_layer=32, n_head=32, n_embd=4096, n_hidden=11008),
}
SETTINGS = [(rows, remat) for rows in (16, 8, 4, 2, 1) for remat in ("none", "block")]  # rows of a device
HEAD = """| model | devices | setting that fits | GiB each | ms a step | tokens/s | MFU | $ a billion tokens |
|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class TableOptions:
    on: Name = "H100"
    models: Name = ",".join(MODELS)


def main(argv: list[str]) -> None:
    own, rest = split_options(argv, TableOptions)
    models = own.models.split(",")
    if unknown := [*rest, *(model for model in models if model not in MODELS)]:
        raise UserError(
            f"{unknown[0]}: expected --on=DEVICE,... or --models=NAME,..., of {', '.join(MODELS)}"
        )
    targets = [parse_target(text) for text in own.on.split(",")]
    prepare_to_compile()
    print(HEAD, flush=True)
    for model in models:
        for target in targets:
            print(row(model, target), flush=True)


def row(model: str, target: Target) -> str:
    meta = NANOGPT if model.startswith("gpt2") else replace(NANOGPT, vocab_size=32000)
    where = f"{target.count} x {target.device.name}"
    planned = None
    for rows, remat in SETTINGS:
        options = replace(
            Options(),
            **MODELS[model],
            batch_size=rows * target.count,
            gradient_accumulation_steps=1,
            mesh=f"fsdp:{target.count}",
            remat=remat,
            unroll=1,
        )
        planned = try_plan(options, target, meta)
        if planned and planned.memory.fits:
            return f"| {model} | {where} | {describe(planned, target)}"
    need = f"needs {planned.memory.peak / GIB:.0f} GiB" if planned else "cannot be split over them"
    return f"| {model} | {where} | none: {need}, a device has {target.device.usable / GIB:.1f} | | | | | |"


def try_plan(options: Options, target: Target, meta: Meta) -> Planned | None:
    """Return the plan, or None where the model cannot be split so."""
    try:
        return plan(options, target, meta)
    except UserError as error:
        print(f"note: {error}", file=sys.stderr)
        return None


def describe(planned: Planned, target: Target) -> str:
    assert planned.cost is not None
    options, figures = planned.options, run_figures(planned, target, parameters=1)
    rate = figures["tokens_per_second"]
    dollars = 1e9 / rate / 3600 * target.count * target.device.price
    attention = planned.config.compute.attention
    return (
        f"{options.batch_size // target.count} rows, remat={options.remat}, {attention} | "
        f"{planned.memory.peak / GIB:.1f} | {1e3 * planned.cost.hidden_seconds:.1f} | {rate:,.0f} | "
        f"{figures['mfu']:.0%} | {short(dollars)} |"
    )


if __name__ == "__main__":
    command(main)
