"""Chapter 18: conversations packed into rows, and what the tokens of a row attend to."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.colors import ListedColormap

from data.conversations import Renderer, pack
from data.train_tokenizer import save as save_tokenizer
from data.train_tokenizer import train
from data.writer import load_tokenizer
from docs.figures import BLUE, LIGHT, ORANGE, legend, save

QUESTIONS = {
    "What is 2 + 3?": "5",
    "Which day comes after Friday?": "Saturday",
    "Sort 7, 2, 5.": "2, 5, 7",
    "Write nap backwards.": "pan",
    "Count from 1 to 12.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
    "Who wrote Hamlet?": "William Shakespeare wrote it.",
    "Is 7 odd?": "Yes.",
}
ROW = 65  # tokens
KINDS = {"read": "#a9c4ea", "learned": ORANGE, "filled up": LIGHT}


def rows() -> tuple[np.ndarray, np.ndarray, int]:
    """Return tokens, which of them are learned, and the token that begins a conversation."""
    with TemporaryDirectory() as folder:
        texts = iter([*QUESTIONS, *QUESTIONS.values(), "user", "assistant"])
        save_tokenizer(train(texts, 1000), Path(folder))
        renderer = Renderer(load_tokenizer(folder))
    pieces = [
        renderer([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
        for question, answer in QUESTIONS.items()
    ]
    ids, learned, _ = pack(pieces, ROW, renderer.start)
    return ids.reshape(-1, ROW), learned.reshape(-1, ROW), renderer.start


def draw(axes) -> None:
    ids, learned, start = rows()
    print(f"{learned.mean():.0%} of the tokens are learned")
    begins = ids == start
    filled = begins & np.column_stack([begins[:, 1:], np.ones(len(ids), bool)])  # up to the row's end
    kind = np.where(filled, 2, learned)  # of KINDS
    strip, mask = axes
    strip.pcolormesh(kind, cmap=ListedColormap([*KINDS.values()]), edgecolors="white", lw=0.3)
    strip.invert_yaxis()
    for row, column in zip(*np.nonzero(begins & ~filled), strict=True):
        strip.plot([column] * 2, [row, row + 1], color="black", lw=1.5)
    strip.set(xticks=[], yticks=np.arange(len(ids)) + 0.5, yticklabels=range(1, len(ids) + 1), ylabel="row")
    strip.spines[:].set_visible(False)
    legend(strip, KINDS, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, fontsize=9)
    document = begins[0].cumsum()
    seen = np.tri(ROW, dtype=bool) & (document[:, None] == document)
    mask.imshow(seen, cmap=ListedColormap(["white", BLUE]), interpolation="none")
    mask.set(xlabel="attends to", ylabel="a token of row 1", xticks=[], yticks=[])


if __name__ == "__main__":
    save("packed", draw, height=2.6, ncols=2, width_ratios=[2, 1])
