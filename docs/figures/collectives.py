"""Count what eight devices send each other in one training step, and draw it, for chapter 11 of the book.

    python -m docs.figures.collectives                      four meshes: docs/images/collectives.svg
    python -m docs.figures.collectives --mesh=fsdp:4,tensor:2       another one: a table, and no picture

The quickstart's model is compiled for eight simulated devices, and the compiled program is read as plan.py
reads those of GPUs. Bytes are those that a ring takes: (n - 1) / n of the array for a gather, twice that
for a sum.
"""

import argparse
from collections import Counter
from dataclasses import replace
from functools import cache

import jax
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from config.options import Options
from docs.figures import BLUE, GREEN, ORANGE, save
from parallel.mesh import make_mesh
from tools.planning.program import Program
from training.state import model_config, state_shapes
from training.step import compile_step

MESHES = ("data:8", "fsdp:8", "data:2,tensor:4", "data:2,fsdp:2,tensor:2")
QUICKSTART = replace(
    Options(),
    **dict(n_layer=4, n_head=4, n_embd=128, block_size=128, position="rope", norm="rmsnorm"),
    **dict(batch_size=16, gradient_accumulation_steps=1, unroll=1),
)
VOCABULARY = 96  # that of book_char, the quickstart's text
SMALL = 1500  # bytes; what sends less is a loss or the parts of a norm

Sent = Counter[tuple[str, str]]  # times or bytes by the axes along which devices differ, and by kind


@cache
def count(mesh: str, options: Options = QUICKSTART, V: int = VOCABULARY) -> tuple[Sent, Sent]:
    """Return how often one step sends, and how many bytes one device sends, by (axes, kind)."""
    if "stage" in mesh:  # a pipeline wants microbatches: the same rows, in eight of them
        options = replace(options, batch_size=2, gradient_accumulation_steps=8)
    with jax.set_mesh(make_mesh(mesh)):
        shape = dict(jax.sharding.get_mesh().shape)
        step = compile_step(state_shapes(model_config(options, V), options), options)
    times, sent = Counter(), Counter()
    for x in Program(step.as_text() or "", shape).messages():
        if x.sent >= SMALL:
            times[x.axes, x.kind] += x.times
            sent[x.axes, x.kind] += x.times * int(x.sent)
    return times, sent


def table(mesh: str) -> str:
    times, sent = count(mesh)
    lines = [f"{f'--mesh={mesh}':34}{'times':>6}{'KB sent by a device':>22}"]
    for axes, kind in sorted(times):
        lines.append(f"  {kind + ' along ' + axes:32}{times[axes, kind]:6}{sent[axes, kind] / 1e3:22,.0f}")
    return "\n".join([*lines, f"  {'all':32}{'':6}{sum(sent.values()) / 1e3:22,.0f}"])


def draw(axes: Axes) -> None:
    colors = {"all-gather": BLUE, "all-reduce": ORANGE, "reduce-scatter": GREEN}
    for y, mesh in enumerate(MESHES):
        left = 0.0
        for (along, kind), size in sorted(count(mesh)[1].items()):
            axes.barh(y, size / 1e6, left=left, color=colors[kind], edgecolor="white")
            if size > 8e5:
                axes.text(left + size / 2e6, y, along, ha="center", va="center", color="white", fontsize=8)
            left += size / 1e6
    axes.set_yticks(range(len(MESHES)), MESHES, family="monospace")
    axes.invert_yaxis()
    axes.set_xlabel("MB that one device sends in one step (the quickstart's model, float32)")
    handles = [Rectangle((0, 0), 1, 1, color=colors[kind]) for kind in ("all-gather", "all-reduce")]
    axes.legend(handles, ["all-gather: to have it whole", "all-reduce: to sum"], fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.figures.collectives", description=__doc__)
    parser.add_argument("--mesh", help="print what this mesh of eight devices sends")
    mesh = parser.parse_args().mesh
    jax.config.update("jax_num_cpu_devices", 8)
    if mesh:
        print(table(mesh))
    else:
        print("\n".join(map(table, MESHES)))
        save("collectives", draw, height=2.6)


if __name__ == "__main__":
    main()
