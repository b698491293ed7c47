"""Plan how fast sampling can be at best. Each token reads all the weights and its sequence's keys and values.

Two counts stand side by side: the least, by the shapes alone, and what the compiled loop of
`generation/decode.py` reads and writes. Sequences share the reading of the weights. Sampling uses one device.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from config.devices import GIB, Device
from config.options import Options
from data.dataset import Meta
from generation.decode import Rows, decode, start
from model import GPTConfig
from parallel.mesh import AXES, mesh_of
from tools.planning.cost import Cost, estimate
from tools.planning.program import parse_program
from tools.planning.report import lines_table
from tools.planning.speeds import Work
from tools.planning.target import Target
from training.state import model_config

ONE = dict.fromkeys(AXES, 1)  # a mesh of one device


def plan_decoding(options: Options, target: Target, meta: Meta) -> str:
    """Compile the loop of sampling for one of the target's devices, and format what a token of it takes."""
    B = options.batch_size
    with jax.set_mesh(mesh_of(target.devices[:1], tuple(ONE.values()))):
        config = model_config(options, meta.vocab_size)
        here = jax.NamedSharding(jax.sharding.get_mesh(), P())
        decoder, cache = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
            jax.eval_shape(
                lambda: start(config.build(jax.random.key(0)), B, config.block_size, config.vocab_size)
            ),
        )
        compiled = decode.lower(decoder, cache, Rows.empty(B, config.vocab_size), np.int32(1)).compile()
    memory = compiled.memory_analysis()
    assert memory is not None, "XLA plans the memory for GPUs and TPUs"
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    # How often the loop runs is not known, so that its body counts once: a token of each sequence.
    cost = estimate(parse_program(compiled.as_text() or ""), target, ONE)
    return decoding_table(config, target.device, B, needed, cost)


def decoding_table(config: GPTConfig, device: Device, B: int, needed: int, cost: Cost) -> str:
    """Format what a token reads, at least and as compiled, and how many tokens a second that allows."""
    T, weights, cache = config.block_size, weight_bytes(config), cache_bytes(config)
    verdict = "it fits" if needed <= device.usable else "it does not fit"

    def row(name: str, seconds: float, size: float) -> str:
        return f"{name:40}{1e3 * seconds:10.3f}{size / 1e9:10.3f}{B / seconds:12,.0f}"

    lines = [
        f"A plan for sampling on one {device.name} ({device.kind}). Nothing was run or measured.\n",
        f"{'weights that a token reads':40}{weights / GIB:10.3f} GiB in {config.compute.dtype}",
        f"{f'cache of {B} x {T:,} tokens':40}{B * T * cache / GIB:10.3f} GiB",
        f"{'memory of the compiled program':40}{needed / GIB:10.3f} GiB "
        f"of {device.usable / GIB:.2f}: {verdict}",
        f"\n{'a token for each of the sequences':40}{'ms':>10}{'GB':>10}{'tokens/s':>12}",
    ]
    for length in (T // 4, T // 2, T):
        least = weights + B * length * cache
        seconds = float(cost.speeds.bounds(Work(1, bytes=least))["memory"])
        lines.append(row(f"at least, {length:,} in the cache", seconds, least))
    classes = cost.by_class()
    lines.append(row("as compiled", cost.seconds, sum(x.bytes for x in classes)))
    lines += [f"  {x.name:38}{1e3 * x.seconds:10.3f}{x.bytes / 1e9:10.3f}" for x in classes]
    return "\n".join([*lines, lines_table(cost)])


def weight_bytes(config: GPTConfig) -> int:
    """Return the bytes of the weights that a token has to read, in the dtype of the products.

    A token reads one row of the embeddings, which is not counted, unless they are the head too.
    """
    model = jax.eval_shape(lambda: config.build(jax.random.key(0)))
    read = sum(x.size for x in jax.tree.leaves(model))
    read -= 0 if model.wpe is None else model.wpe.size
    read -= 0 if model.lm_head is None else model.wte.size
    return jnp.dtype(config.compute.dtype).itemsize * read


def cache_bytes(config: GPTConfig) -> int:
    """Return the bytes of the keys and values of one token."""
    return 2 * config.n_layer * config.kv_heads * config.head_size * jnp.dtype(config.compute.dtype).itemsize
