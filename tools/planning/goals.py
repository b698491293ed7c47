"""Find the devices that train a model within a budget or a time: plan.py --budget=50 --until=val3.28.

Each device is planned alone, in a machine of eight, or as a small slice of TPUs; weights are split (`fsdp`)
where they do not fit otherwise.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from config.command_line import UserError
from config.devices import PRICES_READ
from config.options import Options
from data.dataset import Meta
from model import GPTConfig
from runs.sizes import flops_per_token
from tools.planning.expected import COVERED, Expected, expect
from tools.planning.fit import Planned, count_parameters, plan
from tools.planning.report import short
from tools.planning.target import DEVICES, Target, parse_target
from training.state import model_config

COUNTS = {"gpu": ("1", "8"), "tpu": ("1x1", "2x2", "2x4"), "v5p": ("1x1x1", "2x2x1", "2x2x2")}
# The val loss of a GPT of N parameters that read D tokens of the web, GPT-2's: E + A / N^a + B / D^b.
# A, B, a and b are Chinchilla's, estimated again (arXiv:2404.10102). With E, GPT-2 124M comes to 3.28 after
# 10 billion tokens (github.com/karpathy/llm.c/discussions/481). That author's 350M model has 2.92 after 50
# billion (github.com/KellerJordan/modded-nanogpt), 0.07 more than this.
A, ALPHA, B, BETA = 482.01, 0.3478, 2085.43, 0.3658
E = 3.28 - A / 124.5e6**ALPHA - B / 10e9**BETA


def tokens_until(text: str, config: GPTConfig) -> float:
    """Return the tokens that `--until` asks for: `val3.28`, a val loss, or `10e9`. Raises UserError."""
    if found := re.fullmatch(r"val(\d+(?:\.\d+)?)", text):
        parameters = count_parameters(config)
        least = E + A / parameters**ALPHA
        if float(found[1]) <= least:
            raise UserError(
                f"--until={text}: {parameters / 1e6:.0f}M parameters come to {least:.2f} at the very least; "
                "give a higher loss, or a larger model"
            )
        return (B / (float(found[1]) - least)) ** (1 / BETA)
    if not re.fullmatch(r"[1-9]\d*(?:\.\d+)?(?:e\d\d?)?", text):
        raise UserError(f"--until={text}: expected a val loss, as in val3.28, or tokens, as in 10e9")
    return float(text)


class Way(NamedTuple):
    """One way to train a model: devices, a mesh, and what it should take."""

    planned: Planned
    expected: Expected
    hours: float
    dollars: float


def ways(options: Options, meta: Meta, tokens: float, budget: float, hours: float) -> list[Way]:
    """Plan the devices that could do it, and return those that are expected to, the cheapest first."""
    config = model_config(options, meta.vocab_size)
    flops = tokens * flops_per_token(config, options.block_size)
    found = []
    for device in DEVICES.values():
        for count in COUNTS["v5p" if device.name == "v5p" else "gpu" if device.is_gpu else "tpu"]:
            target = parse_target(f"{device.name}:{count}")
            least = flops / device.peak / 3600  # hours of devices at their peak
            if least * device.price > budget or least / target.count > hours:
                continue
            print(f"planning {target.text}", flush=True)
            planned = first_that_fits(options, target, meta)
            if planned and planned.cost:
                expected = expect(planned.cost, device)
                took = tokens / planned.tokens * expected.seconds / 3600
                found.append(Way(planned, expected, took, took * target.count * device.price))
    return sorted((x for x in found if x.dollars <= budget and x.hours <= hours), key=lambda x: x.dollars)


def first_that_fits(options: Options, target: Target, meta: Meta) -> Planned | None:
    """Plan the step with whole weights on each device, then with split ones; None if it does not fit."""
    A, B, n = options.gradient_accumulation_steps, options.batch_size, target.count
    if A % n == 0:  # as nanoGPT does: the step stays as large, and a device's microbatch
        A, B = A // n, B * n
    for mesh in (f"data:{n}", f"fsdp:{n}")[: 1 if n == 1 else 2]:
        try:
            changes = dict(mesh=mesh, gradient_accumulation_steps=A, batch_size=B)
            planned = plan(replace(options, **changes), target, meta)
        except UserError:  # rows or a width that do not split evenly
            continue
        if planned.memory.fits:
            return planned
    return None


def goal_table(found: list[Way], tokens: float, goal: str) -> str:
    """Format the ways to a goal."""
    if not found:
        return f"No device of the table is expected to do {goal}: raise it, or take a smaller model."
    lines = [
        f"{tokens / 1e9:.3g} billion tokens, {goal}. Between brackets: where {COVERED:.0%} of published runs "
        f"would lie.\n",
        f"{'devices':20}{'mesh':10}{'ms a step':>10}  {'hours':32}{'dollars':32}price and evidence",
    ]
    for way in found:
        device, expected = way.planned.target.device, way.expected
        low, high = expected.low / expected.seconds, expected.high / expected.seconds

        def spread(x: float, low: float = low, high: float = high) -> str:
            return f"{short(x)} ({short(low * x)} to {short(high * x)})"

        lines.append(
            f"{way.planned.target.text:20}{way.planned.options.mesh:10}{1e3 * expected.seconds:10,.1f}  "
            f"{spread(way.hours):32}{spread(way.dollars):32}"
            f"${device.price:.2f} an hour ({device.price_source}); {expected.evidence}"
        )
    return "\n".join([*lines, f"\nPrices were read in {PRICES_READ}. Nothing was run."])
