"""Chapter 2: how well n-grams know Python's source, and when a GPT passes each of them.

    python -m docs.figures.ngram_ladder

An n-gram model counts which character followed each context of n - 1. A context that was never seen tells it
nothing, so each order leans on the one below by Witten and Bell's rule (doi.org/10.1109/18.87000, method C):
the more different characters have followed a context, the less it is trusted.
"""

import json
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from data.dataset import DATA, load_meta, prepare_if_missing
from docs.figures import BLUE, GREY, LIGHT, ORANGE, quickstart, save

ORDERS = range(1, 9)  # 96 symbols: an 8-gram has a number of its own in 63 bits


class Rung(NamedTuple):
    bits: float  # a character of the test text, on average
    kinds: int  # n-grams that were counted
    new: float  # the part of the test text's n-grams that the training text does not have


def codes(ids: Int[np.ndarray, " N"], n: int, vocab_size: int) -> Int[np.ndarray, " N"]:
    """Number the n-gram that ends at each token from the n-th on, so that equal ones are equal."""
    code = np.zeros(len(ids) - n + 1, np.int64)
    for i in range(n):
        code = code * vocab_size + ids[i : len(ids) - n + 1 + i]
    return code


def count(table: tuple, wanted: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Look numbers up in a table of sorted numbers and their counts; 0 for those that are not there."""
    known, counts = table
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, counts[at], 0)


def ladder(train: np.ndarray, test: np.ndarray, vocab_size: int) -> list[Rung]:
    """Count n-grams of each order on `train`, and see how well they know `test`."""
    probability = np.full(len(test), 1 / vocab_size)  # of each character; order 0: all alike
    rungs = []
    for n in ORDERS:
        grams = np.unique(codes(train, n, vocab_size), return_counts=True)
        contexts = grams[0] // vocab_size  # sorted, as the n-grams are
        first = np.flatnonzero(np.diff(contexts, prepend=-1))
        seen = contexts[first], np.add.reduceat(grams[1], first)  # how often each context was there
        kinds = contexts[first], np.diff(first, append=len(contexts))  # and how many characters followed

        code = codes(test, n, vocab_size)
        C = count(grams, code)  # how often this character followed this context
        N, T = count(seen, code // vocab_size), count(kinds, code // vocab_size)
        lower = probability[n - 1 :]
        probability[n - 1 :] = np.where(N > 0, (C + T * lower) / np.maximum(N + T, 1), lower)
        rungs.append(Rung(-np.log2(probability).mean(), len(contexts), (C == 0).mean()))
    return rungs


def draw(axes) -> None:
    prepare_if_missing("python_char")
    train, val = (
        np.fromfile(DATA / "python_char" / f"{split}.bin", np.uint16).astype(np.int64)
        for split in ("train", "val")
    )
    rungs = ladder(train, val, load_meta("python_char").vocab_size)
    for n, rung in zip(ORDERS, rungs, strict=True):
        print(f"{n}-gram   {rung.bits:.2f} bits a character   {rung.kinds:9,} kinds   {rung.new:6.2%} new")
    bits = [rung.bits for rung in rungs]
    draw_ladder(axes[0], bits)
    draw_training(axes[1], bits)


def draw_ladder(axes, bits: list[float]) -> None:
    axes.plot([n - 1 for n in ORDERS], bits, "o-", color=BLUE)
    for n, height in zip(ORDERS, bits, strict=True):
        label(axes, f"{height:.2f}", (n - 1, height), 7, BLUE)
    axes.axhline(np.log2(96), color=GREY, lw=0.8, ls=":")
    axes.text(7.5, np.log2(96) + 0.08, "log₂ 96: knows nothing", color=GREY, fontsize=9, ha="right")
    axes.set(
        xlabel="characters of context", ylabel="bits a character, validation", xlim=(-0.6, 7.6), ylim=(0, 6.9)
    )
    axes.set_title("n-grams of Python's library")


def draw_training(axes, bits: list[float]) -> None:
    records = [json.loads(line) for line in (quickstart() / "metrics.jsonl").read_text().splitlines()]
    steps = [(r["iter"], r["loss"] / np.log(2)) for r in records if "loss" in r]
    evaluations = [(r["iter"], r["val/loss"] / np.log(2)) for r in records if "val/loss" in r]
    last = evaluations[-1][0]
    axes.plot(*zip(*steps, strict=True), color=LIGHT, label="a batch of training text")
    axes.plot(*zip(*evaluations, strict=True), "o-", color=ORANGE, label="validation")
    label(axes, f"{evaluations[-1][1]:.2f}", evaluations[-1], -15, ORANGE)
    for n in (1, 2, 3, 5):
        axes.axhline(bits[n - 1], color=BLUE, lw=0.8, ls=":")
        axes.text(1.03 * last, bits[n - 1] + 0.06, f"{n}-gram", color=BLUE, fontsize=9, ha="right")
    axes.set(xlabel="training step", xlim=(-0.025 * last, 1.04 * last))
    axes.set_title("the quickstart's GPT passes them")
    axes.legend(loc="upper right")


def label(axes, text: str, at: tuple[float, float], above: int, color: str) -> None:
    axes.annotate(text, at, (0, above), textcoords="offset points", color=color, ha="center")


if __name__ == "__main__":
    save("ngram_ladder", draw, ncols=2, sharey=True, height=3.6)
