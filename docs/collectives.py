"""Chapter 11: what eight devices send each other in one training step.

    python -m docs.collectives                          on four meshes
    python -m docs.collectives --mesh=fsdp:4,tensor:2   on another

The quickstart's model is compiled for eight simulated devices, and the compiled program is read as plan.py
reads those of GPUs. Bytes are those that a ring takes: (n - 1) / n of the array for a gather, twice that
for a sum.
"""

import argparse
from collections import Counter
from dataclasses import replace

import jax

from common.command_line import given
from common.errors import command
from config.options import Options
from parallel.mesh import make_mesh
from tools.planning.program import Program
from training.state import model_config, state_shapes
from training.step import compile_step

MESHES = ("data:8", "fsdp:8", "data:2,tensor:4", "data:2,fsdp:2,tensor:2")
WORDS = ["config/quickstart.py", "--optimizer=adamw", "--dtype=float32", "--unroll=1"]
VOCABULARY = 96  # that of book_char, the quickstart's text
SMALL = 1500  # bytes; what sends less is a loss or the parts of a norm

Sent = Counter[tuple[str, str]]  # times or bytes by the axes along which devices differ, and by kind


def count(mesh: str) -> tuple[Sent, Sent]:
    """Return how often one step sends, and how many bytes one device sends, by (axes, kind)."""
    options = Options(**given(WORDS, Options))
    if "stage" in mesh:  # a pipeline wants microbatches: the same rows, in eight of them
        options = replace(options, batch_size=2, gradient_accumulation_steps=8)
    with jax.set_mesh(make_mesh(mesh)):
        shape = dict(jax.sharding.get_mesh().shape)
        step = compile_step(state_shapes(model_config(options, VOCABULARY), options), options)
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.collectives", description=__doc__)
    parser.add_argument("--mesh", help="of eight devices")
    mesh = parser.parse_args().mesh
    jax.config.update("jax_num_cpu_devices", 8)
    print("\n".join(map(table, [mesh] if mesh else MESHES)))


if __name__ == "__main__":
    command(lambda _: main())
