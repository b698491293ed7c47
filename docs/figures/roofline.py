"""Chapter 10: the roofline of an H100, and what some of GPT-2's work could reach under it.

Both axes are counted: FLOPs and bytes by shapes, peaks from common/devices.csv. Nothing was measured.
"""

import jax

from docs.figures import BLUE, GREEN, GREY, ORANGE, save, write
from model import GPTConfig
from runs.metrics import flops_per_token
from tools.planning.target import DEVICES

GPT2 = GPTConfig(mlp="gelu")
H100 = DEVICES["H100"]
LEFT, RIGHT = 0.15, 3000  # FLOPs per byte


def product(m: int, k: int, n: int) -> float:
    """Return the FLOPs per byte of an (m, k) by (k, n) product in bfloat16, each array moved once."""
    return 2 * m * k * n / (2 * (m * k + k * n + m * n))


def weight_bytes(config: GPTConfig) -> int:
    """Return the bytes of the weights that decoding a token loads, in bfloat16.

    Of the embeddings it loads one row, which is not counted. A tied table counts in full, as the lm_head.
    """
    model = jax.eval_shape(lambda: config.build(jax.random.key(0)))
    read = sum(x.size for x in jax.tree.leaves(model))
    read -= 0 if model.wpe is None else model.wpe.size
    read -= 0 if model.lm_head is None else model.wte.size
    return 2 * read


def cache_bytes(config: GPTConfig) -> int:
    """Return the bytes of the keys and values of one token, in bfloat16."""
    return 2 * config.n_layer * config.kv_heads * config.head_size * 2


def decoding(B: int, length: int) -> float:
    """Return the FLOPs per byte of decoding one token for each of B sequences of that length."""
    flops = B * flops_per_token(GPT2, length) / 3  # forward alone
    return flops / (weight_bytes(GPT2) + B * length * cache_bytes(GPT2))


def attainable(intensity: float) -> float:
    return min(H100.peak, intensity * H100.bandwidth)


WORK = {
    # About 16 operations. In float32 it loads three arrays and the gradient, and stores three.
    "AdamW's update": (16 / 28, GREEN),
    # About 8 operations on a number of two bytes, which is loaded and stored.
    "norm, forward": (8 / 4, GREEN),
    "decoding, 1 sequence of 512 tokens": (decoding(1, 512), ORANGE),
    "decoding, 64 sequences of 512 tokens": (decoding(64, 512), ORANGE),
    "decoding, 64 sequences of 32 tokens": (decoding(64, 32), ORANGE),
    "MLP": (product(12 * 1024, 768, 3072), BLUE),
    "lm_head": (product(12 * 1024, 768, 50304), BLUE),
}


def draw(axes) -> None:
    ridge = H100.peak / H100.bandwidth
    axes.loglog([LEFT, ridge, RIGHT], [attainable(x) / 1e12 for x in (LEFT, ridge, RIGHT)], color=GREY, lw=2)
    axes.axvline(ridge, color=GREY, lw=0.8, ls=":")
    write(axes, ridge, 0.6, f"{ridge:.0f} FLOPs per byte", GREY)
    write(axes, 5, 30, "3.35 TB/s", GREY, rotation=32)
    write(axes, 900, 1300, "989 TFLOP/s", GREY, "left")
    for name, (intensity, color) in WORK.items():
        y = attainable(intensity) / 1e12
        axes.plot(intensity, y, "o", color=color)
        write(axes, 1.2 * intensity, (0.45 if name == "MLP" else 0.75) * y, name, color, "left")
    axes.set(xlim=(LEFT, RIGHT), ylim=(0.4, 2000), xlabel="FLOPs per byte", ylabel="TFLOP/s at most")


if __name__ == "__main__":
    save("roofline", draw, height=3.8)
