"""Chapter 15: induction heads appear in a model of two layers, and not in one of one layer.

    python -m docs.figures.induction                            train six small models, in minutes on 2 cores
    python -m docs.figures.induction out-quickstart out-other   score the heads of runs

The text is random letters that repeat after a random period: only a copy can tell what comes next.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from common.errors import command
from config.options import Options
from docs.figures import BLUE, GREY, ORANGE, save, write
from model import GPT, GPTConfig
from runs.load import load_run
from tools.inside.views import attention, nats
from training.optimizer import make_optimizer

V, T, BATCH, STEPS, EVERY, SEEDS = 32, 48, 32, 1000, 50, (0, 1, 2)
SHAPE = GPTConfig(T, V, n_head=2, n_embd=32, position="rope", norm="rmsnorm")
RATE: Any = dict(learning_rate=1e-2, min_lr=1e-3, warmup_iters=50, max_iters=STEPS, lr_decay_iters=STEPS)
MUON = Options(optimizer="muon", weight_decay=0, beta2=0.99, **RATE)
PERIODS = 8, 25  # of the texts to train on: from, to
TEXTS, PERIOD = 16, 16  # to score heads by: how many, and their period


class Scores(NamedTuple):
    heads: Float[np.ndarray, "L H"]
    first: float  # bits of a token that is new
    again: float  # and of one that the text has had before


def repeated(rng: np.random.Generator, symbols: int, period: int, length: int) -> Int[np.ndarray, " length"]:
    """Return random tokens that repeat after `period`."""
    return np.resize(rng.integers(symbols, size=period, dtype=np.int32), length)


def induction(weights: Float[np.ndarray, "L H T T"], period: int) -> Float[np.ndarray, "L H"]:
    """Return the weight that each head gives, on average, to the token after the present one's last copy."""
    t = np.arange(period, weights.shape[-1])
    return weights[:, :, t, t - period + 1].mean(-1)


def scores(model: GPT, period: int, length: int) -> Scores:
    rng = np.random.default_rng(7)
    texts = [repeated(rng, model.config.vocab_size, period, length) for _ in range(TEXTS)]
    heads = np.mean([induction(attention(model, text), period) for text in texts], axis=0)
    bits = np.mean([nats(model, text) for text in texts], axis=0) / np.log(2)
    return Scores(heads, bits[: period - 1].mean(), bits[period:].mean())


def train(n_layer: int, seed: int) -> Iterator[GPT]:
    """Yield the model at first, and after every few steps."""
    config = replace(SHAPE, n_layer=n_layer)
    model = eqx.filter_jit(GPT)(config, key=jax.random.key(seed))
    optimizer = make_optimizer(MUON)
    state, rng = optimizer.init(model), np.random.default_rng(seed)

    def loss(model: GPT, tokens: Int[Array, "B T"]):
        return model.loss(tokens[:, :-1], tokens[:, 1:])

    @eqx.filter_jit
    def step(model, state, tokens):
        updates, state = optimizer.update(eqx.filter_grad(loss)(model, tokens), state, model)
        return eqx.apply_updates(model, updates), state

    for i in range(STEPS + 1):
        if i % EVERY == 0:
            yield model
        batch = [repeated(rng, V, int(rng.integers(*PERIODS)), T + 1) for _ in range(BATCH)]
        model, state = step(model, state, jnp.asarray(np.stack(batch)))


def draw(axes) -> None:
    for n_layer, color in ((1, GREY), (2, ORANGE)):
        for seed in SEEDS:
            found = [scores(model, PERIOD, T) for model in train(n_layer, seed)]
            steps = range(0, STEPS + 1, EVERY)
            label = f"{n_layer} layer{'s' if n_layer > 1 else ''}" if seed == SEEDS[0] else None
            axes[0].plot(steps, [x.heads.max() for x in found], color=color, label=label)
            axes[1].plot(steps, [x.again for x in found], color=color)
            tell(f"{n_layer} layers, seed {seed}", found[-1])
    axes[0].set(xlabel="step", ylim=(0, 1), title="the highest score of a head")
    axes[0].legend(loc="upper left")
    axes[1].set(xlabel="step", ylim=(0, None), title="bits of a repeated token")
    axes[1].axhline(np.log2(V), color=BLUE, lw=0.8, ls=":")
    write(axes[1], STEPS, np.log2(V) - 0.25, "guessing", BLUE, "right")


def tell(name: str, found: Scores) -> None:
    heads = "; ".join(" ".join(f"{x:.2f}" for x in layer) for layer in found.heads)
    print(f"{name}: heads {heads}; bits {found.first:.2f}, repeated {found.again:.2f}", flush=True)


def main(folders: list[str]) -> None:
    for folder in folders:
        model, *_ = load_run(folder)
        tell(folder, scores(model, model.config.block_size // 2, model.config.block_size))
    if not folders:
        save("induction", draw, width=7.2, height=2.8, ncols=2)


if __name__ == "__main__":
    command(main)
