"""Chapter 4: where a GPT's parameters are, and how its residual stream grows before anything is learnt."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, legend, save, ticks, write
from model import GPT, Block, GPTConfig, attention, causal_mask

MODELS = {
    "quickstart": GPTConfig(128, 96, 4, 4, n_embd=128, position="rope", norm="rmsnorm"),
    "baby GPT": GPTConfig(256, 65, 6, 6, n_embd=384),
    "GPT-2 124M": GPTConfig(vocab_size=50257, mlp="gelu", bias=True),
    "GPT-2 1.5B": GPTConfig(1024, 50257, 48, 25, n_embd=1600, mlp="gelu", bias=True),
}
PARTS = {"tokens": ORANGE, "positions": GREY, "attention": BLUE, "MLPs": GREEN}
DEPTH = 24


def count(config: GPTConfig) -> tuple[int, dict[str, int]]:
    """Return all parameters, and those of each part. The model is not made: its shapes are enough."""
    model = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))

    def size(part) -> int:
        return sum(x.size for x in jax.tree.leaves(part))

    blocks = model.blocks
    parts = map(size, (model.wte, model.wpe, blocks.attn, blocks.mlp))
    return size(model), dict(zip(PARTS, parts, strict=True))


def growth(scaled: bool) -> list[float]:
    """Return the RMS of a number of the residual stream before and after each of DEPTH random blocks."""
    config = GPTConfig(64, 96, DEPTH, 4, n_embd=128, norm="rmsnorm")
    mask = causal_mask(np.arange(64)[None], 64, None)
    make = eqx.filter_jit(Block)
    apply = eqx.filter_jit(lambda block, x: block(x, lambda q, k, v, key: attention(q, k, v, mask)))
    x_key, *keys = jax.random.split(jax.random.key(0), DEPTH + 1)
    x = 0.02 * jax.random.normal(x_key, (1, 64, 128))
    found = [rms(x)]
    for key in keys:
        block = make(config, key=key)
        if not scaled:
            block = eqx.tree_at(
                lambda block: (block.attn.c_proj.weight, block.mlp.c_proj.weight),
                block,
                replace_fn=lambda weight: weight * math.sqrt(2 * DEPTH),
            )
        x = apply(block, x)
        found.append(rms(x))
    return found


def rms(x) -> float:
    return float(jnp.sqrt(jnp.square(x).mean()))


def draw(axes) -> None:
    bars, stream = axes
    for y, (name, config) in enumerate(MODELS.items()):
        total, counted = count(config)
        left = 0.0
        print(name, f"{total:,}", {part: f"{n:,}" for part, n in counted.items()})
        for part, n in counted.items():
            bars.barh(-y, 100 * n / total, left=left, color=PARTS[part], height=0.6)
            left += 100 * n / total
        write(bars, 0, -y + 0.45, f"{name}: {total / 1e6:,.1f} million", GREY, "left")
    bars.set(yticks=[], xlabel="% of the parameters (norms: under 0.2%)", ylim=(-3.5, 1.25))
    bars.set_title("where the parameters are")
    legend(bars, PARTS, loc="upper center", ncols=4, fontsize=8, columnspacing=1, handlelength=1)

    for scaled, color, text in (
        (False, ORANGE, "all matrices 0.02"),
        (True, BLUE, "residual ones 0.02 / √(2L)"),
    ):
        found = growth(scaled)
        print(text, [round(found[i], 3) for i in (0, 1, DEPTH)])
        stream.plot(found, color=color)
        write(stream, DEPTH, found[-1] * 1.2, text, color, "right")
    stream.axhline(0.02, color=LIGHT, lw=0.8)
    stream.set(xlabel="blocks passed", ylabel="RMS of the stream", yscale="log", ylim=(0.015, 0.6))
    ticks(stream.yaxis, [0.02, 0.05, 0.1, 0.2, 0.5])
    stream.set_title(f"{DEPTH} blocks at the start")


if __name__ == "__main__":
    save("whole_model", draw, ncols=2, height=3.2)
