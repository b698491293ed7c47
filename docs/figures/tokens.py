"""Chapter 1: one line of Python cut by three vocabularies, and what a larger vocabulary saves and costs.

The byte pairs are learnt here, from the quickstart's training text: no network is needed.
"""

from dataclasses import replace

from tokenizers import Tokenizer

from data.dataset import load_meta
from data.tokenizer import from_json
from data.train_tokenizer import train as learn
from docs.figures import BLUE, GREY, ORANGE, book, canvas, save, ticks, tile, write
from docs.figures.whole_model import MODELS, count

LINE = "    def __init__(self, name=None):"
SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
FILLS = ("#cfe0f5", "#f9ddc1", "#cdeadb", "#e4e0f3")


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [text[a:b] for a, b in tokenizer.encode(text).offsets]


def embedding_share(vocab_size: int) -> float:
    """Return the part of the quickstart's parameters that its table of tokens would be."""
    total, counted = count(replace(MODELS["quickstart"], vocab_size=vocab_size))
    return counted["tokens"] / total


def draw_rows(axes, rows: dict[str, list[str]]) -> None:
    """Draw each row's pieces as tiles; a space is a dot."""
    canvas(axes, len(LINE) + 15, len(rows))
    axes.invert_yaxis()
    for y, (label, row) in enumerate(rows.items()):
        at = 0
        for i, piece in enumerate(row):
            tile(axes, at, y + 0.2, len(piece), 0.6, FILLS[i % len(FILLS)], ec="white")
            for j, symbol in enumerate(piece.replace(" ", "·")):
                write(axes, at + j + 0.5, y + 0.5, symbol, family="monospace")
            at += len(piece)
        write(axes, at + 0.7, y + 0.5, f"{label}: {len(row)}", GREY, "left")


def draw(axes) -> None:
    ids = [book(split) for split in ("train", "val")]
    train, val = map(from_json(load_meta("book_char").tokenizer or {}).decode, ids)
    lines = train.splitlines(keepends=True)
    learnt = {size: learn(iter(lines), size + 3) for size in SIZES}  # three of the tokens are special
    per_token = [len(val) / len(learnt[size].encode(val).ids) for size in SIZES]
    shares = [100 * embedding_share(size) for size in SIZES]
    for size, length, share in zip(SIZES, per_token, shares, strict=True):
        print(f"V = {size}: {length:.2f} characters a token, {share:.0f}% of the parameters in the table")

    above, below = axes
    draw_rows(above, {"characters": list(LINE)} | {f"V = {V}": pieces(learnt[V], LINE) for V in (512, 8192)})
    below.plot(SIZES, per_token, "o-", color=BLUE)
    below.set(xlabel="tokens in the vocabulary", ylim=(0, 5), xscale="log")
    ticks(below.xaxis, SIZES, SIZES)
    below.set_ylabel("characters a token", color=BLUE)
    other = below.twinx()
    other.plot(SIZES, shares, "s--", color=ORANGE)
    other.set_ylim(0, 100)
    other.set_ylabel("table's % of parameters", color=ORANGE)
    other.spines["right"].set_visible(True)


if __name__ == "__main__":
    save("tokens", draw, nrows=2, height=4.6, height_ratios=(1, 1.7))
