"""How fast can sampling be at best? Each token reads all the weights, and its sequence's keys and values.

The sequences of a batch share the reading of the weights, and each reads a cache of its own. Nothing is
compiled for this: it is the count of bytes over the memory's bandwidth, at 90% of it.
"""

import jax

from config.options import Options
from data.loader import Meta
from model import GPT, GPTConfig
from parallel.mesh import mesh_of
from planning.cost import MEMORY
from planning.devices import GIB
from planning.target import Target, absent_devices
from training.state import model_config

FLOAT32, BFLOAT16 = 4, 2  # bytes


def decoding_table(options: Options, meta: Meta, target: Target) -> str:
    """Format what a token reads, and how many tokens a second that allows one device."""
    device = target.device
    with jax.set_mesh(mesh_of(absent_devices(target.text)[:1], (1, 1, 1, 1))):
        config = model_config(options, meta.vocab_size)
    weights, cache = weight_bytes(config), cache_bytes(config)
    B, T = options.batch_size, config.block_size
    lines = [
        f"A plan for sampling on one {device.name} ({device.kind}): nothing was run or measured.\n",
        f"{'weights, read for each token':40}{weights / GIB:10.3f} GiB",
        f"{f'cache of {B} x {T} tokens, when full':40}{B * T * cache / GIB:10.3f} GiB",
        f"\n{'tokens in the context':24}{'ms a token':>12}{'tokens/s':>12}{'read by the cache':>20}",
    ]
    for length in sorted({1, T // 4, T // 2, T} - {0}):
        seconds, share = token_seconds(weights, cache, B, length, MEMORY * device.bandwidth)
        lines.append(f"{length:<24,}{1e3 * seconds:12.3f}{B / seconds:12,.0f}{share:20.0%}")
    lines.append(f"(at {MEMORY:.0%} of {device.bandwidth / 1e12:.3g} TB/s)")
    if (held := weights + B * T * cache) > device.memory:
        lines.append(
            f"It does not fit: needs {held / GIB:.1f} GiB, a {device.name} has {device.memory / GIB:.2f}"
        )
    return "\n".join(lines)


def token_seconds(weights: int, cache: int, B: int, length: int, bandwidth: float) -> tuple[float, float]:
    """Return the seconds of one token for each of B sequences of `length`, and the share that caches take."""
    read = weights + B * length * cache
    return read / bandwidth, B * length * cache / read


def weight_bytes(config: GPTConfig) -> int:
    """Return the bytes of the weights that a token reads: all, in float32 as they are kept.

    Of the embeddings a token reads one row, unless they are the head too.
    """
    model = jax.eval_shape(lambda: GPT(config, key=jax.random.key(0)))
    read = sum(x.size for x in jax.tree.leaves(model))
    read -= 0 if model.wpe is None else model.wpe.size
    read -= 0 if model.lm_head is None else model.wte.size
    return FLOAT32 * read


def cache_bytes(config: GPTConfig) -> int:
    """Return the bytes of the keys and values of one token."""
    per_number = BFLOAT16 if config.dtype == "bfloat16" else FLOAT32
    return 2 * config.n_layer * config.kv_heads * config.head_size * per_number
