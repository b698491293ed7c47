"""A table for docs/planning.md: which models fit which devices, how fast at best, and at what price.

    python -m tools.planning.table --on=H100,v5e:2x4 --models=gpt2,llama-1b

For each model and devices it takes the first of a few settings that fits: 16, 8, 4, 2 or 1 sequences of 1024
tokens (Llama: 2048) on each device, with `--mesh=fsdp` over all of them, without and with `--remat=block`.
Layers are in a loop (`--unroll=1`): large models take long to compile otherwise. Nothing of it is measured.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

from config.command_line import UserError, command
from config.devices import GIB
from config.options import Options
from data.meta import NANOGPT, Meta
from runs.sizes import flops_per_token
from tools.planning.fit import Planned, plan
from tools.planning.report import short
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
ROWS = (16, 8, 4, 2, 1)  # of a device
HEAD = """| model | devices | setting that fits | GiB each | ms a step | tokens/s | MFU | $ a billion tokens |
|---|---|---|---|---|---|---|---|"""


def main(argv: list[str]) -> None:
    targets, models = read_words(argv)
    prepare_to_compile()
    print(HEAD, flush=True)
    for model in models:
        for target in targets:
            print(row(model, target), flush=True)


def read_words(argv: list[str]) -> tuple[list[Target], list[str]]:
    given = dict(word.partition("=")[::2] for word in argv)
    if given.keys() - {"--on", "--models"} or "--on" not in given:
        raise UserError(
            "expected --on=DEVICE,... and perhaps --models=NAME,..., as the top of this file says"
        )
    models = given.get("--models", ",".join(MODELS)).split(",")
    for model in models:
        if model not in MODELS:
            raise UserError(f"--models: unknown model {model!r}; known are {', '.join(MODELS)}")
    return [parse_target(text) for text in given["--on"].split(",")], models


def row(model: str, target: Target) -> str:
    meta = NANOGPT if model.startswith("gpt2") else replace(NANOGPT, vocab_size=32000)
    where = f"{target.count} x {target.device.name}"
    planned = None
    for options in settings(model, target):
        planned = try_plan(options, target, meta)
        if planned and planned.memory.fits:
            return f"| {model} | {where} | {describe(planned, target)}"
    need = f"needs {planned.memory.peak / GIB:.0f} GiB" if planned else "cannot be split over them"
    return f"| {model} | {where} | none: {need}, a device has {target.device.usable / GIB:.1f} | | | | | |"


def settings(model: str, target: Target) -> Iterator[Options]:
    for rows in ROWS:
        for remat in ("none", "block"):
            yield replace(
                Options(),
                **MODELS[model],
                batch_size=rows * target.count,
                gradient_accumulation_steps=1,
                mesh=f"fsdp:{target.count}",
                remat=remat,
                unroll=1,
            )


def try_plan(options: Options, target: Target, meta: Meta) -> Planned | None:
    """Return the plan, or None where the model cannot be split so."""
    try:
        return plan(options, target, meta)
    except UserError as error:
        print(f"note: {error}", file=sys.stderr)
        return None


def describe(planned: Planned, target: Target) -> str:
    assert planned.cost is not None
    options, seconds = planned.options, planned.cost.hidden_seconds
    tokens = options.batch_size * options.block_size
    flops = flops_per_token(planned.config, options.block_size) * tokens
    mfu = flops / seconds / target.count / target.device.peak
    dollars = 1e9 / (tokens / seconds) / 3600 * target.count * target.device.price
    attention = planned.config.compute.attention
    setting = f"{options.batch_size // target.count} rows, remat={options.remat}, {attention}"
    return (
        f"{setting} | {planned.memory.peak / GIB:.1f} | {1e3 * seconds:.1f} | {tokens / seconds:,.0f} | "
        f"{mfu:.0%} | {short(dollars)} |"
    )


if __name__ == "__main__":
    command(main)
