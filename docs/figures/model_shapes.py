"""Chapter 4: the quickstart's model, with the shape at every arrow. The model gives the shapes."""

import equinox as eqx
import jax
import jax.numpy as jnp

from docs.figures import BLUE, GREEN, GREY, ORANGE, arrow, box, canvas, save, write
from docs.figures.whole_model import MODELS
from model import GPT

B, T = 16, 100


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each array on the way. Nothing is computed."""
    config = MODELS["quickstart"]

    def run(key, tokens):
        model = GPT(config, key=key)
        block = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, model.blocks)
        positions, attend = model.causal_attention(tokens)
        x = model.embed(tokens, positions)
        y = block.ln_1(x)
        q, k, v = block.attn.c_q(y), block.attn.c_k(y), block.attn.c_v(y)
        mixed = attend(*(heads.swapaxes(1, 2) for heads in (q, k, v))).swapaxes(1, 2)
        y = block.ln_2(x)
        gate, h = block.mlp.c_gate(y), block.mlp.c_fc(y)
        features = model.features(tokens)
        return {
            "tokens": tokens,
            "x": x,
            "q": q,
            "mixed": mixed,
            "attention": block.attn.c_proj(mixed.reshape(*x.shape[:2], -1)),
            "h": gate * h,
            "mlp": block.mlp.c_proj(h),
            "features": features,
            "logits": model.logits(features),
        }

    found = eqx.filter_eval_shape(run, jax.random.key(0), jnp.zeros((B, T), jnp.int32))
    return {name: array.shape for name, array in found.items()}


def draw(axes) -> None:
    found = {name: str(shape) for name, shape in shapes().items()}
    print(found)
    model, block = axes
    canvas(model, 7, 9.6, "the model")
    parts = [
        ("wte: look up a row", ORANGE),
        ("4 blocks", BLUE),
        ("ln_f: normalise", GREY),
        ("lm_head: wte again", ORANGE),
    ]
    arrow(model, (2.6, 9.3), (2.6, 8.4), f"tokens {found['tokens']}")
    for i, ((text, color), shape) in enumerate(zip(parts, ("x", "x", "features", "logits"), strict=True)):
        y = 8.0 - 2.1 * i
        box(model, 2.6, y, text, color, width=4.4)
        below = "logits " if shape == "logits" else ""
        arrow(model, (2.6, y - 0.4), (2.6, y - 1.7 if i < 3 else y - 1.5), below + found[shape])

    canvas(block, 11, 9.6, "one of its blocks")
    arrow(block, (1, 9.4), (1, 0.1), color=ORANGE, width=4)
    write(block, 1.25, 9.2, f"residual stream x {found['x']}", ORANGE, "left", fontsize=8.5)
    rows = [
        (8.2, "ln_1", GREY, ""),
        (6.9, "c_q, c_k, c_v", BLUE, "x"),
        (5.6, "attend", BLUE, "q"),
        (4.3, "c_proj", BLUE, "mixed"),
        (3.0, "ln_2", GREY, ""),
        (1.9, "c_gate, c_fc: SwiGLU", GREEN, "x"),
        (0.6, "c_proj", GREEN, "h"),
    ]
    for y, text, color, shape in rows:
        box(block, 5.4, y, text, color, width=4.6, height=0.66)
        if shape:
            above = next(other[0] for other in reversed(rows) if other[0] > y)
            arrow(block, (5.4, above - 0.33), (5.4, y + 0.33), found[shape])
        else:
            arrow(block, (1, y), (3.1, y))
    for y, shape in ((4.3, "attention"), (0.6, "mlp")):
        arrow(block, (3.1, y), (1.15, y))
        write(block, 1.25, y + 0.3, "+", ORANGE, "left", fontsize=12)
        write(block, 7.8, y, found[shape], GREY, "left", fontsize=8.5)


if __name__ == "__main__":
    save("model_shapes", draw, ncols=2, width=7.6, height=4.6, width_ratios=[7, 11])
