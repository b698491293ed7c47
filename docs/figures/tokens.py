"""Chapter 1: one line of Python cut by three vocabularies, and what a larger vocabulary saves and costs.

    python -m docs.figures.tokens

The byte pairs are learnt here, from the quickstart's training text: no network is needed.
"""

import equinox as eqx
import jax
import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel as Bytes
from tokenizers.trainers import BpeTrainer

from data.dataset import DATA, load_meta, prepare_if_missing
from data.tokenizer import from_json
from docs.figures import BLUE, GREY, ORANGE, save
from model import GPT, GPTConfig

LINE = "    def __init__(self, name=None):"
SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
FILLS = ("#cfe0f5", "#f9ddc1", "#cdeadb", "#e4e0f3")


def learn(text: str, vocab_size: int) -> Tokenizer:
    """Learn byte pairs from a text: first the 256 bytes, then again and again the most frequent pair."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Bytes(add_prefix_space=False)  # cuts before words: no token spans two
    tokenizer.decoder = ByteLevel()
    trainer = BpeTrainer(vocab_size=vocab_size, initial_alphabet=Bytes.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [text[a:b] for a, b in tokenizer.encode(text).offsets]


def embedding_share(vocab_size: int) -> float:
    """Return the part of the quickstart's parameters that its table of tokens would be."""
    config = GPTConfig(128, vocab_size, 4, 4, n_embd=128, position="rope", norm="rmsnorm")
    model = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
    return model.wte.size / sum(x.size for x in jax.tree.leaves(model))


def boxes(axes, rows: list[tuple[str, list[str]]]) -> None:
    """Draw each row's pieces as boxes; a space is a dot."""
    for y, (label, row) in enumerate(rows):
        at = 0
        for i, piece in enumerate(row):
            box = dict(facecolor=FILLS[i % len(FILLS)], edgecolor="white")
            axes.barh(-y, len(piece), left=at, height=0.62, **box)
            for j, symbol in enumerate(piece):
                axes.text(
                    at + j + 0.5,
                    -y,
                    symbol if symbol != " " else "·",
                    ha="center",
                    va="center",
                    family="monospace",
                    fontsize=9,
                )
            at += len(piece)
        axes.text(at + 0.7, -y, label, va="center", color=GREY, fontsize=9)
    axes.set(xlim=(0, len(LINE) + 15), ylim=(-len(rows) + 0.4, 0.6))
    axes.axis("off")


def draw(axes) -> None:
    prepare_if_missing("book_char")
    characters = from_json(load_meta("book_char").tokenizer or {})
    train, val = (
        characters.decode(np.fromfile(DATA / "book_char" / f"{split}.bin", np.uint16))
        for split in ("train", "val")
    )
    learnt = {size: learn(train, size) for size in SIZES}
    per_token = [len(val) / len(learnt[size].encode(val).ids) for size in SIZES]
    shares = [100 * embedding_share(size) for size in SIZES]
    for size, length, share in zip(SIZES, per_token, shares, strict=True):
        print(
            f"{size:6} tokens   {length:.2f} characters a token   {share:.0f}% of the parameters: the table"
        )

    above, below = axes
    rows = [("characters", list(LINE))]
    for size in (512, 8192):
        row = pieces(learnt[size], LINE)
        rows.append((f"V = {size}", row))
    boxes(above, [(f"{label}: {len(row)}", row) for label, row in rows])

    below.plot(SIZES, per_token, "o-", color=BLUE)
    below.set(xlabel="tokens in the vocabulary", ylim=(0, 5), xscale="log", xticks=SIZES, xticklabels=SIZES)
    below.set_ylabel("characters a token", color=BLUE)
    below.minorticks_off()
    other = below.twinx()
    other.plot(SIZES, shares, "s--", color=ORANGE)
    other.set_ylim(0, 100)
    other.set_ylabel("table's % of parameters", color=ORANGE)
    other.spines["right"].set_visible(True)


if __name__ == "__main__":
    save("tokens", draw, nrows=2, height=4.6, height_ratios=(1, 1.7))
