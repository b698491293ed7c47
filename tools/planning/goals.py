"""Find the devices that train a model within a budget or a time: plan.py --budget=50 --until=val3.28.

Each device is planned alone and in eights, a deep model from two shallow ones (tools/planning/fit.py).
Weights are split (`fsdp`) where they do not fit otherwise. GPUs of one generation share a program.
"""

import re
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import jax

from common.errors import UserError
from config.options import Options
from data.dataset import Meta
from model import GPTConfig
from runs.metrics import count_parameters, flops_per_token
from tools.planning.fit import count_by_depth
from tools.planning.speeds import COVERED, Expected, Work, expect, family_of, usable
from tools.planning.target import DEVICES, GPUS, Target, parse_target
from training.state import model_config

PRICES_READ = "May to October 2026"  # the dates in common/devices.csv
COUNTS = {"gpu": ("1", "8"), "tpu": ("1x1", "2x4"), "v5p": ("1x1x1", "2x2x2")}
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
            best = f"{parameters / 1e6:.0f}M parameters come to {least:.2f} at the very least"
            raise UserError(f"--until={text}: {best}; give a higher loss, or a larger model")
        return (B / (float(found[1]) - least)) ** (1 / BETA)
    if not re.fullmatch(r"[1-9]\d*(?:\.\d+)?(?:e\d\d?)?", text):
        raise UserError(f"--until={text}: expected a val loss, as in val3.28, or tokens, as in 10e9")
    return float(text)


class Way(NamedTuple):
    target: Target
    mesh: str
    expected: Expected
    steps: float

    def hours(self, seconds: float) -> float:
        """Return the hours of a run whose step takes so many seconds."""
        return self.steps * seconds / 3600

    def dollars(self, seconds: float) -> float:
        return self.hours(seconds) * self.target.count * self.target.device.price


def ways(options: Options, meta: Meta, tokens: float, budget: float, hours: float) -> list[Way]:
    """Plan the devices that could do it, and return those that are expected to, the cheapest first."""
    steps = tokens / options.tokens_per_step
    config = model_config(options, options.vocab_size or meta.vocab_size)
    flops = tokens * flops_per_token(config, options.block_size)
    found, left = [], []
    for device in DEVICES.values():
        least = flops / device.peak / 3600  # hours of devices at their peak
        for count in COUNTS.get(device.name, COUNTS[family_of(device)]):
            target = parse_target(f"{device.name}:{count}")
            if least * device.price <= budget and least / target.count <= hours:
                left.append(target)
    for axis in ("data", "fsdp"):
        counts = count_all(options, left, axis, meta)
        for target in left:
            works, peak = counts.get(program_of(target), (None, 0.0))
            if works and peak <= usable(target.device):
                found.append(Way(target, f"{axis}:{target.count}", expect(works, target.device), steps))
        done = [way.target for way in found]
        left = [target for target in left if target.count > 1 and target not in done]
    reach = [
        x for x in found if x.dollars(x.expected.seconds) <= budget and x.hours(x.expected.seconds) <= hours
    ]
    return sorted(reach, key=lambda x: x.dollars(x.expected.seconds))


def program_of(target: Target) -> tuple:
    """Return what decides a target's program: all GPUs of a generation have the same."""
    gpu = GPUS.get(target.device.name)
    return (gpu["major"], gpu["minor"]) if gpu else target.device.name, target.count


def count_all(
    options: Options, targets: list[Target], axis: str, meta: Meta
) -> dict[tuple, tuple[Work, float]]:
    """Return the work and peak bytes of each program, on a mesh of one axis, whose step can be counted."""
    # XLA for TPUs compiles in an eighth of the time, a step that takes a tenth more (docs/planning.md).
    jax.config.update("jax_exec_time_optimization_effort", -1.0)
    counts = {}
    for program, target in {program_of(target): target for target in targets}.items():
        A, B, n = options.gradient_accumulation_steps, options.batch_size, target.count
        print(f"planning {target.text}, {axis}:{n}", flush=True)
        if A % n == 0:  # as nanoGPT does: the step stays as large, and a device's microbatch
            A, B = A // n, B * n
        changes = dict(mesh=f"{axis}:{n}", gradient_accumulation_steps=A, batch_size=B)
        with suppress(UserError):  # rows or a width that do not split evenly, or too little memory
            counts[program] = count_by_depth(replace(options, **changes), target, meta)
    return counts


def goal_table(found: list[Way], tokens: float, goal: str) -> str:
    if not found:
        return f"No device of the table is expected to finish {goal}: raise it, or take a smaller model."
    lines = [
        f"{tokens / 1e9:.3g} billion tokens, {goal}. Between brackets: where {COVERED:.0%} of published runs "
        f"would lie.\n",
        f"{'devices':16}{'mesh':10}{'ms a step':>10}  {'hours':30}{'dollars':30}price and evidence",
    ]
    for way in found:
        device, expected = way.target.device, way.expected
        lines.append(
            f"{way.target.text:16}{way.mesh:10}{1e3 * expected.seconds:10,.1f}  "
            f"{expected.spread(way.hours):30}{expected.spread(way.dollars, unit='$'):30}"
            f"${device.price:.2f} an hour ({device.price_source}); {expected.evidence}"
        )
    return "\n".join([*lines, f"\nPrices were read in {PRICES_READ}. Nothing was run."])
