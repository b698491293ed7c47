"""Chapter 2: how well n-grams predict the quickstart's text, and when its GPT passes each of them.

An n-gram model counts which character followed each context of n - 1. A context that was never seen tells it
nothing, so each order leans on the one below, by modified Kneser-Ney smoothing (Chen and Goodman 1999,
doi.org/10.1006/csla.1999.0128).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from docs.figures import BLUE, GREY, ORANGE, book, save, write
from experiments.record import RESULTS, Record
from experiments.statistics import critical

SYMBOLS = 96  # in the text
ORDERS = range(1, 10)  # a 9-gram of them has a number of its own in 63 bits
# evaluate.py gave five runs these bits on the whole validation text, with --stride=128 and without.
WHOLE = {
    "side by side": (1.7909, 1.7790, 1.7840, 1.7839, 1.7924),
    "overlapping": (1.7133, 1.7006, 1.7063, 1.7071, 1.7134),
}


class Table(NamedTuple):
    """N-grams as sorted numbers, and a count of each."""

    grams: Int[np.ndarray, " K"]
    counts: Int[np.ndarray, " K"]


class Rung(NamedTuple):
    bits: float  # for a character of the test text, on average
    kinds: int  # n-grams that were counted
    new: float  # the part of the test text's n-grams that the training text does not have


def codes(ids: Int[np.ndarray, " N"], n: int, vocab_size: int) -> Int[np.ndarray, " N"]:
    """Number the n-gram that ends at each token from the n-th on, so that equal ones are equal."""
    code = np.zeros(len(ids) - n + 1, np.int64)
    for i in range(n):
        code = code * vocab_size + ids[i : len(ids) - n + 1 + i]
    return code


def look_up(known: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the value of each wanted number; 0 for those that are not among the known, which are sorted."""
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, values[at], 0)


def discounts(counts: Int[np.ndarray, " K"]) -> Float[np.ndarray, " 4"]:
    """Return what to take off a count of 0, 1, 2, and 3 or more: about what such counts lose on new text."""
    n1, n2, n3, n4 = (max(1, (counts == c).sum()) for c in (1, 2, 3, 4))  # of 1-grams, few occur so rarely
    Y = n1 / (n1 + 2 * n2)
    return np.clip([0, 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3], 0, [0, 1, 2, 3])


def kneser_ney(table: Table, code: np.ndarray, lower: np.ndarray, V: int) -> Float[np.ndarray, " N"]:
    """Return the probability of each n-gram's last character: discounted counts; `lower` gets the rest."""
    D = discounts(table.counts)
    contexts, first = np.unique(table.grams // V, return_index=True)
    seen = np.add.reduceat(table.counts, first)  # how often each context was there
    taken = np.add.reduceat(D[np.minimum(table.counts, 3)], first)  # what its characters' counts gave up
    C, N = look_up(*table, code), look_up(contexts, seen, code // V)
    rest = look_up(contexts, taken, code // V)
    return np.where(N > 0, (C - D[np.minimum(C, 3)] + rest * lower) / np.maximum(N, 1), lower)


def ladder(train: np.ndarray, test: np.ndarray, V: int) -> list[Rung]:
    """Count n-grams of each order on `train`, and see how well they know `test`."""
    rungs = []
    below = np.full(len(test), 1 / V)  # of each character, by the orders below; order 0: all alike
    table = Table(*np.unique(codes(train, 1, V), return_counts=True))
    for n in ORDERS:
        code = codes(test, n, V)
        below = below[-len(code) :]
        ours = kneser_ney(table, code, below, V)
        new = (look_up(*table, code) == 0).mean()
        rungs.append(Rung(-np.log2(ours).mean(), len(table.grams), new))
        if n < ORDERS[-1]:
            table = Table(*np.unique(codes(train, n + 1, V), return_counts=True))
            # To the orders above, this one says after how many different contexts each n-gram came.
            varied = Table(*np.unique(table.grams % V**n, return_counts=True))
            below = kneser_ney(varied, code, below, V)
    return rungs


def draw(axes) -> None:
    rungs = ladder(book("train"), book("val"), SYMBOLS)
    for n, rung in zip(ORDERS, rungs, strict=True):
        print(f"{n}-gram   {rung.bits:.3f} bits a character   {rung.kinds:9,} kinds   {rung.new:6.2%} new")
    draw_ladder(axes[0], rungs)
    draw_training(axes[1], [rung.bits for rung in rungs])


def draw_ladder(axes, rungs: list[Rung]) -> None:
    axes.plot(ORDERS, [rung.bits for rung in rungs], "o-", color=BLUE)
    for n, rung in zip(ORDERS, rungs, strict=True):
        x, y = (n + 0.6, rung.bits + 0.1) if n < 4 else (n, rung.bits - 0.4)  # clear of the curve
        write(axes, x, y, f"{rung.bits:.2f}", BLUE)
    axes.axhline(np.log2(SYMBOLS), color=GREY, lw=0.8, ls=":")
    write(axes, 9.4, np.log2(SYMBOLS) + 0.2, "log₂ 96: knows nothing", GREY, "right")
    axes.set(xlabel="n, of which n - 1 are context", ylabel="bits a character, validation")
    axes.set(xlim=(0.4, 9.6), ylim=(0, 6.9), xticks=ORDERS)
    axes.set_title("n-grams of the book and its code")


def draw_training(axes, bits: list[float]) -> None:
    """Draw the mean loss and range of the quickstart's seeds in training, and the whole text's after it."""
    (runs,) = (entry.runs for entry in Record(RESULTS / "quickstart.json").sets.values())
    found = np.array([run.evaluations[1:] for run in runs])  # (seeds, evaluations, 3): the first is noise
    steps, val = found[0, :, 0], found[:, :, 2] / np.log(2)
    mean = val.mean(0)
    spans = [mean - val.min(0), val.max(0) - mean]
    axes.errorbar(steps, mean, spans, fmt="o-", color=ORANGE, capsize=3, label="20 batches, with range")
    end = steps[-1]
    for (windows, values), marker in zip(WHOLE.items(), "sD", strict=True):
        mean, half = np.mean(values), critical(len(values)) * np.std(values, ddof=1) / len(values) ** 0.5
        print(f"whole text, windows {windows}: {mean:.3f} +- {half:.3f} bits a character")
        label = f"whole text, {windows}: {mean:.2f}"
        axes.plot(1.04 * end, mean, marker, color=ORANGE, mec="white", ms=7, label=label)
    for n in range(4, 10):
        axes.axhline(bits[n - 1], color=BLUE, lw=0.8, ls=":")
        above = 0.02 if n < 9 else -0.025
        write(axes, 1.24 * end, bits[n - 1] + above, f"{n}-gram", BLUE, "right")
    axes.set(xlabel="training step", xlim=(0.2 * end, 1.25 * end), ylim=(1.58, 2.62), xticks=steps)
    axes.set_title("and five seeds of the quickstart's GPT")
    axes.legend(loc="upper right", fontsize=9)


if __name__ == "__main__":
    save("ngram_ladder", draw, ncols=2, height=4.0)
