"""The engine at work, moving: seven requests share three slots. For chapter 14 of the book.

python -m docs.figures.slots

A small model with random weights runs in generation/engine.py, and what each of its steps did is drawn.
"""

import jax
import numpy as np

from docs.figures import BLUE, GREEN, GREY, ORANGE
from docs.figures._motion import Movie, box, text
from generation.engine import Engine, Request
from model import GPT, GPTConfig

MODEL = GPTConfig(block_size=64, vocab_size=64, n_layer=1, n_head=2, n_embd=16, position="rope")
REQUESTS = (
    (4, 12),
    (40, 6),
    (3, 5),
    (10, 14),
    (20, 8),
    (2, 10),
    (30, 4),
)  # tokens of prompt, tokens to write
COLORS = (BLUE, ORANGE, GREEN, "#8a5fb0", "#b5495b", "#3c8d93", "#7a6a3f")
SLOTS, MOST = 3, 4  # and tokens drawn in a step, at most
LEFT, TOP, ROW, STEP = 56, 46, 34, 62


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


def main() -> None:
    steps = run()
    width = LEFT + len(steps) * STEP + 20
    movie = Movie(width, TOP + SLOTS * ROW + 62, 1.1 * len(steps), "Requests enter and leave three slots")
    for slot in range(SLOTS):
        y = TOP + slot * ROW
        movie.add(text(LEFT - 8, y + 20, f"slot {slot}", GREY, size=11, anchor="end"))
        movie.add(box(LEFT, y, len(steps) * STEP, ROW - 4, "#f3f4f6"))
    for i, (waiting, rows) in enumerate(steps):
        x, start = LEFT + i * STEP, i / len(steps) * 0.95
        movie.add(text(x + STEP / 2, TOP - 8, f"step {i + 1}", GREY, size=9, anchor="middle"))
        for slot, request, read, drawn in rows:
            y, color, part = TOP + slot * ROW, COLORS[request], ""
            if read:
                label = text(x + 2 + 13, y + 19, str(read), "white", size=10, anchor="middle")
                movie.add(box(x + 1, y, 28, ROW - 4, color) + label, start)
            for n in range(drawn):
                part += box(x + 32 + 7 * n, y + 8, 5, ROW - 20, color)
            movie.add(part, start)
        foot = text(x + STEP / 2, TOP + SLOTS * ROW + 16, f"{waiting} wait", GREY, size=9, anchor="middle")
        movie.add(foot, start)
    y = TOP + SLOTS * ROW + 44
    legend = "A block is a part of a prompt, with its number of tokens. A stripe is a token drawn."
    movie.add(text(LEFT, y, legend, GREY))
    movie.add(text(LEFT, 20, "Seven requests, each in its colour, share three slots", size=13))
    movie.save("slots")


if __name__ == "__main__":
    main()
