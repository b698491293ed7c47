"""Chapter 5: who waits for whom, when a loop calls a compiled function in three ways. Measured, and drawn.

The loop does what a training loop does: it makes a batch, starts a step, and wants to know the loss.
"""

import time
import timeit
from contextlib import contextmanager

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from docs.figures import BLUE, GREY, ORANGE, legend, save

STEPS, SIZE = 4, 700
COLORS = {"batch": GREY, "call": ORANGE, "read": BLUE}
Spans = list[tuple[str, float, float]]  # what, from, to, in ms


def step(state, batch):
    """Do some work: matrix products, one after the other."""
    for _ in range(4):
        state = jnp.tanh(state @ batch)
    return state, jnp.abs(state).mean()


def make_batch(seconds: float = 0.0) -> np.ndarray:
    """Make a batch, which takes that long, as waiting for a disk does."""
    time.sleep(seconds)
    return np.full((SIZE, SIZE), 1e-3, np.float32)


def loop(call, read_at_once: bool, batch_seconds: float) -> Spans:
    """Run a loop, and note what the Python program did, and when."""
    spans, begin = [], time.perf_counter()

    @contextmanager
    def noted(what: str):
        start = time.perf_counter()
        yield
        spans.append((what, 1e3 * (start - begin), 1e3 * (time.perf_counter() - begin)))

    state, before = jnp.ones((SIZE, SIZE)), 0.0  # before: the loss of the last step
    for _ in range(STEPS):
        with noted("batch"):
            batch = make_batch(batch_seconds)
        with noted("call"):
            state, loss = call(state, batch)
        with noted("read"):
            float(loss if read_at_once else before)
        before = loss
    with noted("read"):
        float(before)
    return spans


def draw(axes) -> None:
    state, batch = jnp.ones((SIZE, SIZE)), make_batch()
    compiled = jax.jit(step).lower(state, batch).compile()
    filtered = eqx.filter_jit(step)
    took = timeit.repeat(lambda: jax.block_until_ready(compiled(state, batch)), number=1, repeat=9)
    batch_seconds = float(np.median(took))  # as long as a step
    ways = {
        "filter_jit: every call waits for its end": (filtered, True),
        "compiled, but the loss is read at once": (compiled, True),
        "compiled, and the loss of the step before is read": (compiled, False),
    }
    for plot, (title, (call, at_once)) in zip(axes, ways.items(), strict=True):
        loop(call, at_once, batch_seconds)  # once to warm up
        tries = [loop(call, at_once, batch_seconds) for _ in range(7)]
        spans = min(tries, key=lambda spans: spans[-1][2])
        for what, start, end in spans:
            plot.barh(0, end - start, left=start, color=COLORS[what], height=0.8)
        print(f"{title}: {spans[-1][2]:.0f} ms for {STEPS} steps")
        plot.set_title(title, fontsize=10)
        plot.set(yticks=[], ylim=(-0.6, 0.6))
    legend(axes[0], COLORS, loc="lower right", bbox_to_anchor=(1, 1.15), ncols=3)
    axes[-1].set_xlabel("ms of the Python program, on one busy machine with 2 cores")


if __name__ == "__main__":
    save("dispatch", draw, nrows=3, sharex=True, height=3.4)
