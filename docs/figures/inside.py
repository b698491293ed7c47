"""Chapter 15: the quickstart's model from the inside, on text that it has not seen.

How far back each head attends, what the loss would be if lm_head came after each layer, and what it is at
each position of a window. It prints these, the loss without each head, and what the model gains from a text
that it has seen just before.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from docs.figures import BLUE, GREY, ORANGE, book, quickstart, save, write
from model import GPT
from runs.load import load_run
from tools.inside.views import attention, lens, nats

BACK = 12  # tokens, that the picture of the heads goes
LATE = 32  # the position from which on a token has enough before it to choose from
FEW, MANY = 32, 512  # windows: for what has a number for each pair of tokens, and for the rest
COPIED = 60  # tokens that come twice


def windows(text: Int[np.ndarray, " N"], n: int, length: int) -> Int[np.ndarray, "n T"]:
    """Return n windows at equal distances."""
    starts = np.linspace(0, len(text) - length, n, dtype=int)
    return text[starts[:, None] + np.arange(length)]


def reach(model: GPT, texts: Int[np.ndarray, "n T"]) -> Float[np.ndarray, "L H back"]:
    """Return how much of its attention each head gives, on average, to the token so many before."""
    found = []
    for text in texts:
        weights = attention(model, text)  # (L, H, T, T)
        t = np.arange(LATE, len(text))
        found.append(np.stack([weights[:, :, t, t - d].mean(-1) for d in range(BACK)], -1))
    return np.mean(found, axis=0)


def bits_by_layer(model: GPT, texts: Int[np.ndarray, "n T"]) -> Float[np.ndarray, " layers"]:
    """Return the loss that lm_head would have after each layer, the embedding first."""
    found = []
    for text in texts:
        seen = lens(model, text, model.config.vocab_size)
        right = seen.tokens[:, :-1] == text[1:, None]  # (layers, T - 1, V): one of each V
        p = np.where(right, seen.probabilities[:, :-1], 0).sum(-1)
        found.append(-np.log2(np.maximum(p, 1e-30)).mean(-1))
    return np.mean(found, axis=0)


def bits_by_position(model: GPT, texts: Int[np.ndarray, "n T"]) -> Float[np.ndarray, " T-1"]:
    return np.mean([nats(model, text) for text in texts], axis=0) / np.log(2)


def without_head(model: GPT, layer: int, head: int) -> GPT:
    """Return the model with 0 for what this head adds to the stream; both are counted from 0."""

    def output(model: GPT):
        return model.blocks.attn.c_proj.weight  # (L, H C, D)

    C = model.config.head_size
    return eqx.tree_at(output, model, output(model).at[layer, head * C : (head + 1) * C].set(0))


def copied(model: GPT, text: Int[np.ndarray, " N"]) -> Float[np.ndarray, "2"]:
    """Return the bits a token costs after other text, and after the very same tokens."""
    pieces = windows(text, MANY, COPIED)
    found = []
    for other, piece in zip(np.roll(pieces, 1, axis=0), pieces, strict=True):
        pairs = np.concatenate([other, piece]), np.concatenate([piece, piece])
        found.append([nats(model, pair)[COPIED:].mean() / np.log(2) for pair in pairs])
    return np.mean(found, axis=0)


def draw(axes) -> None:
    text = book("val").astype(np.int32)
    model, *_ = load_run(str(quickstart()))
    T = model.config.block_size
    few = windows(text, FEW, T)
    heads = reach(model, few)
    layers = bits_by_layer(model, few)
    positions = bits_by_position(model, windows(text, MANY, T))
    draw_heads(axes[0], heads)
    draw_layers(axes[1], layers)
    draw_positions(axes[2], positions)

    for layer, row in enumerate(heads, start=1):
        for head, weights in enumerate(row, start=1):
            most = int(weights.argmax())
            bits = bits_by_position(without_head(model, layer - 1, head - 1), few).mean()
            seen = f"{weights[most]:4.0%} on the token {most} back"
            print(f"layer {layer} head {head}: {seen}, bits without it {bits:.2f}")
    print("bits after each layer:", *(f"{bits:.2f}" for bits in layers))
    for first, last in ((1, 1), (2, 4), (5, 16), (17, 64), (65, T - 1)):
        print(f"bits at positions {first} to {last}: {positions[first - 1 : last].mean():.2f}")
    other, itself = copied(model, text)
    print(f"bits of {COPIED} tokens after others: {other:.2f}, after themselves: {itself:.2f}")


def draw_heads(axes, heads: Float[np.ndarray, "L H back"]) -> None:
    L, H, _ = heads.shape
    cells = heads.reshape(L * H, BACK)
    image = axes.imshow(cells, cmap="Blues", vmin=0, aspect="auto", interpolation="nearest")
    bar = axes.figure.colorbar(image, ax=axes, ticks=[0, 0.2, 0.4, 0.6], format="{x:.0%}", shrink=0.8)
    bar.outline.set_visible(False)
    for layer in range(1, L):
        axes.axhline(layer * H - 0.5, color=GREY, lw=0.8)
    axes.set_yticks([H * layer + (H - 1) / 2 for layer in range(L)], [f"layer {i + 1}" for i in range(L)])
    axes.set(xlabel="tokens back")
    axes.set_title("what each head attends to")


def draw_layers(axes, bits: Float[np.ndarray, " layers"]) -> None:
    axes.plot(bits, "o-", color=BLUE)
    for layer, height in enumerate(bits):
        write(axes, layer + 0.15, height + 0.6, f"{height:.2f}", BLUE, "left")
    axes.set(xlabel="after layer", ylabel="bits a character", ylim=(0, None), xticks=range(len(bits)))
    axes.margins(x=0.15)
    axes.set_title("loss, layer by layer")


def draw_positions(axes, bits: Float[np.ndarray, " T-1"]) -> None:
    axes.plot(np.arange(1, len(bits) + 1), bits, color=ORANGE)
    axes.axhline(bits.mean(), color=GREY, lw=0.8, ls=":")
    write(axes, len(bits), bits.mean() + 0.45, f"mean {bits.mean():.2f}", GREY, "right")
    axes.set(xlabel="characters before", ylim=(0, None))
    axes.set_title("what context is worth")


if __name__ == "__main__":
    save("inside", draw, ncols=3, height=3.4)
