"""Chapter 0: the loss of each of its models, and where two heads of the last one attend.

It trains the chapter's models by the chapter's own snippets, with three seeds each, for some minutes. What it
found is kept in from_scratch.json beside this file, and drawn from there; delete that file to train again.
"""

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np

from docs.figures import BLUE, GREY, ORANGE, save, write
from docs.pages import BOOK, fences

SEEDS = (0, 1, 2)
KEPT = Path(__file__).with_suffix(".json")
# As python -m docs.figures.ngram_ladder prints them.
NGRAMS = {"1-gram": 4.99, "2-gram": 4.01, "3-gram": 2.97, "4-gram": 2.22}
LINE = "Each head has a query and a key:"  # as long as a window


def run(seed: int) -> dict[str, Any]:
    """Run the chapter's snippets, up to its comparison with model.GPT, with a seed; return what they define.

    `bits` of it has the loss of each model, unrounded.
    """
    page = (BOOK / "00-from-scratch.md").read_text().partition("\n## It is")[0]
    scope: dict[str, Any] = {"bits": {}}
    for fence in fences(page):
        if fence.language == "pycon":
            for example in doctest.DocTestParser().get_examples(fence.text):
                source = example.source.replace("key(0)", f"key({seed})")
                source = source.replace("default_rng(0)", f"default_rng({seed})")
                shown = '    print(f"{bits'
                keep = "    globals()['bits'][model.__name__] = float(bits)\n"
                source = source.replace(shown, keep + shown)
                exec(compile(source, "chapter 0", "exec"), scope)
    return scope


def attention(scope: dict[str, Any]) -> list[Any]:
    """Return the weights of all heads of the first block on LINE: (H, T, T)."""
    ids = scope["tokenizer"].encode(LINE)[None]
    first = scope["params"]["blocks"][0]
    x = scope["norm"](first["ln_1"], scope["embed"](scope["params"], ids))
    q, k = (scope["split"](x @ first[name]) for name in ("q", "k"))
    return np.asarray(scope["attention_weights"](q, k)[0]).round(3).tolist()


def train() -> None:
    """Train the models with each seed, and keep what was found."""
    found: dict[str, Any] = {"bits": []}
    for seed in SEEDS:
        scope = run(seed)
        found["bits"].append({name: round(bits, 4) for name, bits in scope["bits"].items()})
        if seed == SEEDS[0]:
            found["attention"] = attention(scope)
    KEPT.write_text(json.dumps(found) + "\n")


def draw(axes) -> None:
    if not KEPT.exists():
        train()
    found = json.loads(KEPT.read_text())
    names = list(found["bits"][0])
    for run_of_seed in found["bits"]:
        axes[0].plot(list(run_of_seed.values()), range(len(names)), "o", color=ORANGE, ms=5, alpha=0.6)
    for n, bits in NGRAMS.items():
        axes[0].axvline(bits, color=BLUE, lw=0.8, ls=":")
        write(axes[0], bits, -0.85, n, BLUE, fontsize=8)
    axes[0].set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -1), xlim=(2, 5.2))
    axes[0].set(xlabel="bits a character, validation")
    axes[0].set_title("Three seeds of each model")

    heads = np.array(found["attention"])
    head = int(np.argmax([np.diag(weights, -1).mean() for weights in heads]))
    axes[1].imshow(heads[head], cmap="Blues", vmin=0, vmax=1)
    axes[1].set(xticks=range(len(LINE)), yticks=range(len(LINE)))
    letters = LINE.replace(" ", "␣")
    for label in (axes[1].set_xticklabels, axes[1].set_yticklabels):
        label(list(letters), fontsize=6, family="monospace")
    axes[1].set_xlabel("key: the character attended to", color=GREY)
    axes[1].set_ylabel("query", color=GREY)
    axes[1].tick_params(length=0)
    axes[1].set_title(f"Block 1, head {head + 1} of deep")


if __name__ == "__main__":
    save("from_scratch", draw, width=8.0, height=3.9, ncols=2, width_ratios=(1.1, 1))
