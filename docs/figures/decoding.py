"""Chapter 14: what prefill and decode cost, with a cache and without.

All of it is computed: scores are counted, and tokens per second follow from FLOPs, bytes and
common/devices.csv.
"""

import numpy as np

from docs.figures import BLUE, GREEN, GREY, LIGHT, ORANGE, canvas, save, ticks, tile, write
from docs.figures.roofline import GPT2, H100, cache_bytes, decoding, weight_bytes

PROMPT, PASSES = 5, 4  # of the picture of scores: tokens, and forward passes
LENGTHS = {64: BLUE, 512: GREEN, 1024: ORANGE}  # tokens of each text
BATCHES = np.unique(np.geomspace(1, 1024, 60).astype(int))


def draw(axes) -> None:
    whole = [range(PROMPT + i) for i in range(PASSES)]  # the queries of each pass
    draw_scores(axes[0], whole, "without a cache")
    draw_scores(axes[1], [whole[0], *(queries[-1:] for queries in whole[1:])], "with a cache")
    draw_speed(axes[2])


def draw_scores(axes, passes: list[range], title: str) -> None:
    """Draw a cell for each score of a head: a row is a query, a column is a key."""
    canvas(axes, PROMPT + PASSES, 29, title)
    axes.invert_yaxis()
    y = 0.0
    for i, queries in enumerate(passes):
        for t in queries:
            color = BLUE if i == 0 else ORANGE if t == queries[-1] else LIGHT
            for key in range(t + 1):
                tile(axes, key, y, 0.86, 0.86, color)
            y += 1
        y += 0.7
    axes.set_xlabel(f"{sum(t + 1 for queries in passes for t in queries)} scores", color=GREY, fontsize=9)


def draw_speed(axes) -> None:
    for length, color in LENGTHS.items():
        moved = weight_bytes(GPT2) + BATCHES * length * cache_bytes(GPT2)
        flops = moved * [decoding(B, length) for B in BATCHES]
        seconds = np.maximum(moved / H100.bandwidth, flops / H100.peak)
        axes.loglog(BATCHES, BATCHES / seconds, color=color, label=f"{length:,} tokens each")
    axes.loglog(BATCHES, BATCHES * H100.bandwidth / weight_bytes(GPT2), color=GREY, lw=0.8, ls=":")
    write(axes, 25, 7e5, "if there were no cache to load", GREY, fontsize=8, rotation=38)
    axes.set(xlabel="texts at once", ylabel="tokens a second, at most")
    ticks(axes.xaxis, [1, 10, 100, 1000])
    axes.legend(fontsize=8, loc="lower right")
    axes.set_title("GPT-2 on an H100, computed")


if __name__ == "__main__":
    save("decoding", draw, width=8.4, height=3.2, ncols=3, width_ratios=[1, 1, 2])
