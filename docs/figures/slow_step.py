"""Chapter 17: where the time of two steps goes, which differ in the gradient of a product. Traced, and drawn.

A step here is the loss of config/train_shakespeare_char_cpu.py's model and its gradients, without an
optimizer. The chapter uses `PlainLinear` and what stands below it, as far as `sums`.
"""

import re
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from docs.figures import BLUE, GREEN, LIGHT, ORANGE, legend, save
from fast import How, faster
from model import GPT, GPTConfig

CONFIG = GPTConfig(n_layer=4, n_head=4, n_embd=128, block_size=64, vocab_size=65)
ROWS, TRACES, TURNS = 12, 40, 20
KINDS = {
    "products, XLA's own loops": ORANGE,
    "copies and transposes": GREEN,
    "products and sums, the library": BLUE,
    "the rest": LIGHT,
}


class PlainLinear(How):
    """All is fast, but for linear layers: their gradient is the one that JAX makes."""

    def product(self, subscripts, a, b, result=None):
        if subscripts == "btd,df->btf":  # a linear layer's
            return jnp.einsum(subscripts, a, b)
        return super().product(subscripts, a, b, result)


class Step:
    """The loss, and with `gradients` these too, computed as `how` says.

    A call takes no arguments, and waits for its end. `program` is what XLA made.
    """

    def __init__(self, how: How, gradients: bool = True, **shape):
        gpt = GPT(replace(CONFIG, **shape), key=jax.random.key(0))

        def loss(gpt, x, y):
            return faster(gpt, how).loss(x, y)

        x = jax.random.randint(jax.random.key(1), (ROWS, CONFIG.block_size), 0, CONFIG.vocab_size)
        function = eqx.filter_value_and_grad(loss) if gradients else loss
        step = jax.jit(lambda gpt, x, y: function(gpt, x, y)).lower(gpt, x, x)
        self.compiled, self.arguments = step.compile(), (gpt, x, x)
        text = self.compiled.as_text() or ""
        self.program = text.partition("\nENTRY ")[2]  # without the computations that it calls

    def __call__(self) -> object:
        return jax.block_until_ready(self.compiled(*self.arguments))

    @property
    def cost(self) -> dict[str, float]:
        """XLA's count of FLOPs, and of the bytes that its kernels read and write."""
        return self.compiled.cost_analysis() or {}


def by_turns(one: Step, other: Step, turns: int = TURNS) -> float:
    """Return how many times the time of `other` a call of `one` takes: the median over turns."""
    ratios = []
    for _ in range(turns):
        seconds = []
        for step in (one, other):
            step()  # untimed: what lies in the caches is the other's
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


class Span(NamedTuple):
    """One kernel at work on one thread, from `start`, for `ms` milliseconds."""

    thread: str
    name: str
    start: float
    ms: float


def traced(step: Step) -> list[Span]:
    """Run a step under the profiler. Return what its kernels did, read from the .xplane.pb file."""
    names = set(re.findall(r"^  (?:ROOT )?%(\S+) =", step.program, re.M))
    quiet = jax.profiler.ProfileOptions()
    quiet.python_tracer_level = 0  # the program's own functions are not asked for
    step()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=quiet):
            step()
        (file,) = Path(folder).glob("plugins/profile/*/*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
        spans = [
            Span(line.name, event.name, event.start_ns / 1e6, event.duration_ns / 1e6)
            for plane in planes
            for line in plane.lines
            for event in line.events
            if event.name in names
        ]
    begin = min(span.start for span in spans)
    return [span._replace(start=span.start - begin) for span in spans]


def kind(name: str) -> str:
    """Return which of KINDS a kernel of JAX 0.10's CPU backend is, by its name."""
    if name.startswith("dot"):
        return "products, XLA's own loops"
    if "copy" in name or "transpose" in name:
        return "copies and transposes"
    if name.startswith(("ynn", "onednn")):
        return "products and sums, the library"
    return "the rest"


def sums(spans: list[Span]) -> dict[str, float]:
    """Return the milliseconds of each kind, over all threads."""
    return {name: sum(span.ms for span in spans if kind(span.name) == name) for name in KINDS}


def draw(axes) -> None:
    steps = {
        "x @ w, with the gradient that JAX makes": Step(PlainLinear()),
        "the same, with the gradient of fast.py": Step(How()),
    }
    tries = {title: [] for title in steps}
    for _ in range(TRACES):
        for title, step in steps.items():
            tries[title].append(traced(step))
    for plot, (title, found) in zip(axes, tries.items(), strict=True):
        spans = min(found, key=lambda spans: max(span.start + span.ms for span in spans))
        busiest = Counter(span.thread for span in spans).most_common(2)  # as many as there are cores
        threads = [thread for thread, _ in busiest]
        for name, color in KINDS.items():
            for row, thread in enumerate(threads):
                own = [(s.start, s.ms) for s in spans if s.thread == thread and kind(s.name) == name]
                plot.broken_barh(own, (row - 0.4, 0.8), color=color, linewidth=0)
        plot.set_title(title, fontsize=10)
        plot.set_yticks(range(len(threads)), [f"thread {i + 1}" for i in range(len(threads))])
    legend(axes[0], KINDS, loc="lower right", bbox_to_anchor=(1, 1.2), ncols=2, fontsize=9)
    axes[-1].set_xlabel("ms of one step under the profiler, on one busy machine with 2 cores")


if __name__ == "__main__":
    save("slow_step", draw, nrows=2, sharex=True, height=3.8)
