"""Chapter 4: the quickstart's model, with the shape at every arrow."""

from docs.figures import BLUE, GREEN, GREY, ORANGE, arrow, box, canvas, save, write
from docs.figures.whole_model import MODELS

B, T = 16, 100
CONFIG = MODELS["quickstart"]
STREAM = f"({B}, {T}, {CONFIG.n_embd})"
HEADS = f"({B}, {T}, {CONFIG.n_head}, {CONFIG.head_size})"
HIDDEN = f"({B}, {T}, {CONFIG.hidden})"
MODEL = (  # a part, and what comes out of it
    ("wte: look up a row", ORANGE, STREAM),
    ("4 blocks", BLUE, STREAM),
    ("ln_f: normalise", GREY, STREAM),
    ("lm_head: wte again", ORANGE, f"logits ({B}, {T}, {CONFIG.vocab_size})"),
)
BLOCK = (  # where, a part, and what goes in from above; the norms read the stream
    (8.2, "ln_1", GREY, ""),
    (6.9, "c_q, c_k, c_v", BLUE, STREAM),
    (5.6, "attend", BLUE, HEADS),
    (4.3, "c_proj", BLUE, HEADS),
    (3.0, "ln_2", GREY, ""),
    (1.9, "c_gate, c_fc: SwiGLU", GREEN, STREAM),
    (0.6, "c_proj", GREEN, HIDDEN),
)


def draw(axes) -> None:
    model, block = axes
    canvas(model, 7, 9.6, "the model")
    arrow(model, (2.6, 9.3), (2.6, 8.4), f"tokens ({B}, {T})")
    for i, (text, color, shape) in enumerate(MODEL):
        y = 8.0 - 2.1 * i
        box(model, 2.6, y, text, color, width=4.4)
        arrow(model, (2.6, y - 0.4), (2.6, y - 1.7 if i < 3 else y - 1.5), shape)

    canvas(block, 11, 9.6, "one of its blocks")
    arrow(block, (1, 9.4), (1, 0.1), color=ORANGE, width=4)
    write(block, 1.25, 9.2, f"residual stream x {STREAM}", ORANGE, "left", fontsize=8.5)
    above = 0.0
    for y, text, color, shape in BLOCK:
        box(block, 5.4, y, text, color, width=4.6, height=0.66)
        if shape:
            arrow(block, (5.4, above - 0.33), (5.4, y + 0.33), shape)
        else:
            arrow(block, (1, y), (3.1, y))
        if text == "c_proj":
            arrow(block, (3.1, y), (1.15, y))
            write(block, 1.25, y + 0.3, "+", ORANGE, "left", fontsize=12)
            write(block, 7.8, y, STREAM, GREY, "left", fontsize=8.5)
        above = y


if __name__ == "__main__":
    save("model_shapes", draw, ncols=2, width=7.6, height=4.6, width_ratios=[7, 11])
