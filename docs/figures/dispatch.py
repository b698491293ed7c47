"""Chapter 5: who waits for whom, when a loop calls a compiled function in three ways. Measured, and drawn.

    python -m docs.figures.dispatch

The loop does what a training loop does: it makes a batch, starts a step, and wants to know the loss.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from docs.figures import BLUE, GREY, ORANGE, save

STEPS, SIZE = 4, 700
Spans = list[tuple[str, int, float, float]]  # who, which step, from, to, in seconds


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
    state, spans, waiting, begin = jnp.ones((SIZE, SIZE)), [], None, time.perf_counter()

    def note(who, i, start):
        spans.append((who, i, start - begin, time.perf_counter() - begin))

    for i in range(STEPS):
        start = time.perf_counter()
        batch = make_batch(batch_seconds)
        note("batch", i, start)
        start = time.perf_counter()
        state, loss = call(state, batch)
        note("call", i, start)
        start = time.perf_counter()
        if read_at_once:
            float(loss)
        elif waiting is not None:
            float(waiting)  # the loss of the step before
        note("read", i, start)
        waiting = loss
    start = time.perf_counter()
    float(waiting)
    note("read", STEPS, start)
    return spans


def draw(axes) -> None:
    state, batch = jnp.ones((SIZE, SIZE)), make_batch()
    compiled = jax.jit(step).lower(state, batch).compile()
    filtered = eqx.filter_jit(step)
    took = []
    for _ in range(9):
        start = time.perf_counter()
        jax.block_until_ready(compiled(state, batch))
        took.append(time.perf_counter() - start)
    batch_seconds = float(np.median(took))  # as long as a step
    ways = {
        "filter_jit: every call waits for its end": (filtered, True),
        "compiled, but the loss is read at once": (compiled, True),
        "compiled, and the loss of the step before is read": (compiled, False),
    }
    colors = {"batch": GREY, "call": ORANGE, "read": BLUE}
    for plot, (title, (call, at_once)) in zip(axes, ways.items(), strict=True):
        loop(call, at_once, batch_seconds)  # once to warm up
        tries = [loop(call, at_once, batch_seconds) for _ in range(7)]
        spans = min(tries, key=lambda spans: spans[-1][3])
        for who, i, start, end in spans:
            label = who if i == 0 and plot is axes[0] else None
            plot.barh(0, 1e3 * (end - start), left=1e3 * start, color=colors[who], label=label, height=0.8)
        print(f"{title}: {1e3 * spans[-1][3]:.0f} ms for {STEPS} steps")
        plot.set_title(title, fontsize=10)
        plot.set(yticks=[], ylim=(-0.6, 0.6))
    axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1.15), ncols=3)
    axes[-1].set_xlabel("ms of the Python program, on one busy machine with 2 cores")


if __name__ == "__main__":
    save("dispatch", draw, nrows=3, sharex=True, height=3.4)
