"""Chapter 0: the loss of each of its models.

It trains the chapter's models by the chapter's own snippets, with three seeds each, for some minutes. What it
found is kept in from_scratch.json beside this file, and drawn from there; delete that file to train again.
"""

import doctest
import json
from pathlib import Path
from typing import Any

from docs.figures import BLUE, ORANGE, save, write
from docs.pages import BOOK, fences

SEEDS = (0, 1, 2)
KEPT = Path(__file__).with_suffix(".json")
# As python -m docs.figures.ngram_ladder prints them.
NGRAMS = {"1-gram": 4.99, "2-gram": 4.01, "3-gram": 2.97, "4-gram": 2.22}


def train(seed: int) -> dict[str, float]:
    """Run the chapter's snippets, up to its comparison with model.GPT. Return the loss of each model."""
    page = (BOOK / "00-from-scratch.md").read_text().partition("\n## It is")[0]
    scope: dict[str, Any] = {"found": {}}
    for fence in fences(page):
        if fence.language == "pycon":
            for example in doctest.DocTestParser().get_examples(fence.text):
                source = example.source.replace("key(0)", f"key({seed})")
                source = source.replace("default_rng(0)", f"default_rng({seed})")
                shown = '    print(f"{bits'
                keep = "    globals()['found'][model.__name__] = round(float(bits), 4)\n"
                source = source.replace(shown, keep + shown)
                exec(compile(source, "chapter 0", "exec"), scope)
    return scope["found"]


def draw(axes) -> None:
    if not KEPT.exists():
        KEPT.write_text(json.dumps({"bits": [train(seed) for seed in SEEDS]}) + "\n")
    found = json.loads(KEPT.read_text())["bits"]
    names = list(found[0])
    for of_seed in found:
        axes.plot(list(of_seed.values()), range(len(names)), "o", color=ORANGE, ms=5, alpha=0.6)
    for n, bits in NGRAMS.items():
        axes.axvline(bits, color=BLUE, lw=0.8, ls=":")
        write(axes, bits, -0.85, n, BLUE, fontsize=8)
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -1), xlim=(2, 5.2))
    axes.set_xlabel("bits a character, on unseen text")


if __name__ == "__main__":
    save("from_scratch", draw, width=5.6)
