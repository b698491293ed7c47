"""Chapter 14: the engine at work. Seven requests share three slots.

A small model with random weights runs in generation/engine.py, and what each of its steps did is drawn.
"""

import jax
import numpy as np

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, canvas, save, tile, write
from generation.engine import Engine, Request
from model import GPT, GPTConfig

MODEL = GPTConfig(block_size=64, vocab_size=64, n_layer=1, n_head=2, n_embd=16, position="rope")
REQUESTS = ((4, 12), (40, 6), (3, 5), (10, 14), (20, 8), (2, 10), (30, 4))  # tokens of prompt, and to write
COLORS = (BLUE, ORANGE, GREEN, "#8a5fb0", "#b5495b", "#3c8d93", "#7a6a3f")
SLOTS, MOST = 3, 4  # and tokens drawn in a step, at most
TOP, ROW, STEP = 14, 34, 62


def run() -> list[tuple[float, list[tuple[int, int, int, int]]]]:
    """Return for each step how many requests wait, and (slot, request, tokens read, tokens drawn)."""
    engine = Engine(GPT(MODEL, key=jax.random.key(0)), SLOTS)
    waiting, who, steps = list(range(len(REQUESTS))), {}, []
    while waiting or not engine.idle:
        while waiting and engine.free:
            i = waiting.pop(0)
            prompt, new = REQUESTS[i]
            who[engine.add(Request(np.arange(prompt), jax.random.key(i), new))] = i
        before = {slot: engine.to_read(slot) for slot in engine.sequences}
        pieces = engine.step(MOST)
        after = {slot: engine.to_read(slot) for slot in engine.sequences}
        drawn = {piece.slot: len(piece.tokens) for piece in pieces}
        rows = [(s, who[s], n - after.get(s, 0), drawn.get(s, 0)) for s, n in before.items()]
        steps.append((len(waiting), rows))
    return steps


def draw(axes) -> None:
    steps, bottom = run(), TOP + SLOTS * ROW
    canvas(axes, len(steps) * STEP, bottom + 50)
    axes.invert_yaxis()
    for slot in range(SLOTS):
        write(axes, -8, TOP + slot * ROW + 15, f"slot {slot}", GREY, "right")
        tile(axes, 0, TOP + slot * ROW, len(steps) * STEP, ROW - 4, LIGHT, alpha=0.3)
    for i, (waiting, rows) in enumerate(steps):
        x = i * STEP
        write(axes, x + STEP / 2, 4, f"step {i + 1}", GREY, fontsize=7.5)
        for slot, request, read, drawn in rows:
            y, color = TOP + slot * ROW, COLORS[request]
            if read:
                tile(axes, x + 1, y, 28, ROW - 4, color)
                write(axes, x + 15, y + 15, str(read), "white", fontsize=8)
            for n in range(drawn):
                tile(axes, x + 32 + 7 * n, y + 8, 5, ROW - 20, color)
        write(axes, x + STEP / 2, bottom + 10, f"{waiting} wait", GREY, fontsize=7.5)
    words = "A colour is a request, a block a part of its prompt, with its tokens, a stripe a token drawn."
    write(axes, 0, bottom + 36, words, GREY, "left")


if __name__ == "__main__":
    save("slots", draw, width=8, height=2)
