"""Time decoding, with the key/value cache and without it: `python bench.py --decode`."""

import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from config.options import Options
from generation.engine import generate
from model import GPT, GPTConfig
from training.state import create_state

DECODED = 256  # tokens


def report_decoding(config: GPTConfig, options: Options) -> None:
    """Print tokens/s of `generate`, and of reading the whole context anew for every token."""
    model = create_state(config, options).model
    cached, recomputed = (seconds_to_decode(how, model) for how in (with_cache, without_cache))
    print(f"\n{DECODED} tokens, one row, greedy{'tokens/s':>26}{'ms/token':>12}")
    for name, seconds in (("with the key/value cache", cached), ("whole context every token", recomputed)):
        print(f"{name:40}{DECODED / seconds:16,.0f}{1e3 * seconds / DECODED:12.3f}")
    print(f"{'ratio':40}{recomputed / cached:15.1f}x")


def seconds_to_decode(how, model: GPT) -> float:
    """Return the median time of 5 runs, compiled before."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        how(model)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def with_cache(model: GPT) -> list[int]:
    prompt, key = np.zeros((1, 1), np.int32), jax.random.key(0)
    made = generate(model, prompt, key=key, max_new_tokens=DECODED, temperature=0)
    return [int(token) for tokens in made for token in tokens[0]]


def without_cache(model: GPT) -> list[int]:
    """Decode by nanoGPT's rule: the last block_size tokens are the context, padded, to be compiled once."""
    S, tokens = model.config.block_size, [0]
    for _ in range(DECODED):
        context = tokens[-S:]
        padded = np.array([context + [0] * (S - len(context))], np.int32)
        tokens.append(int(likeliest_next(model, padded, np.int32(len(context)))))
    return tokens[1:]


@eqx.filter_jit
def likeliest_next(model: GPT, context, length):
    """Return the likeliest token after the first `length` of `context` (1, S)."""
    x = lax.dynamic_slice_in_dim(model.features(context), length - 1, 1, axis=1)
    return jnp.argmax(model.logits(x))
