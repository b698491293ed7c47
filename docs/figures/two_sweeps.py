"""Chapter 6: a small GPT's loss by learning rate, under AdamW and under Muon.

    python -m docs.figures.two_sweeps

It trains for some minutes. What it found is kept in two_sweeps.json beside this file, and drawn from there.
"""

import json
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from config.options import Options
from data.dataset import Batches, Dataset, prepare_if_missing
from docs.figures import BLUE, GREY, save
from fast import How, faster
from model import GPT, GPTConfig
from training.optimizer import make_optimizer

STEPS, B, T, SEEDS = 200, 16, 64, (1, 2, 3)
RATES = {"adamw": (1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3), "muon": (2e-3, 4e-3, 8e-3, 16e-3, 32e-3, 64e-3)}
COLORS = {"adamw": GREY, "muon": BLUE}
KEPT = Path(__file__).with_suffix(".json")
CONFIG = GPTConfig(T, 96, 2, 4, n_embd=64, position="rope", norm="rmsnorm")


def trainer(optimizer: str):
    """Return a function from a rate and a seed to the loss on validation text after STEPS steps."""
    values = dict(learning_rate=1.0, min_lr=0.1, beta2=0.99, warmup_iters=20, lr_decay_iters=STEPS)
    options = replace(Options(), optimizer=optimizer, **values)
    dataset = Dataset("python_char")
    val = [Batches(dataset.tokens("val"), B, T, seed=0)(i) for i in range(40)]

    def loss_of(model, x, y):
        return faster(model, How()).loss(x, y)

    loss = eqx.filter_jit(loss_of)

    @eqx.filter_jit(donate="all-except-first")
    def step(batch, model, state, rate):
        gradients = eqx.filter_grad(loss_of)(model, *batch)
        updates, state = make_optimizer(options).update(gradients, state, model)
        # The rate is the last factor of an update: with 1.0 in the options, every rate is one program.
        return eqx.apply_updates(model, jax.tree.map(lambda u: rate * u, updates)), state

    def train(rate: float, seed: int) -> float:
        batches = Batches(dataset.tokens("train"), B, T, seed)
        model = eqx.filter_jit(GPT)(CONFIG, key=jax.random.key(seed))
        state = make_optimizer(options).init(model)
        for i in range(STEPS):
            model, state = step(tuple(map(jnp.asarray, batches(i))), model, state, jnp.float32(rate))
        return float(np.mean([loss(model, *map(jnp.asarray, batch)) for batch in val]))

    return train


def measure() -> dict[str, dict[str, list[float]]]:
    found = {}
    for optimizer, rates in RATES.items():
        train = trainer(optimizer)
        found[optimizer] = {str(rate): [train(rate, seed) for seed in SEEDS] for rate in rates}
    return found


def draw(axes) -> None:
    prepare_if_missing("python_char")
    if not KEPT.is_file():
        KEPT.write_text(json.dumps(measure()))
    for optimizer, losses in json.loads(KEPT.read_text()).items():
        rates = [float(rate) for rate in losses]
        means = [np.mean(found) for found in losses.values()]
        for rate, found, mean in zip(rates, losses.values(), means, strict=True):
            axes.plot([rate] * len(found), found, ".", color=COLORS[optimizer], alpha=0.5)
            print(f"{optimizer:6} {rate:<6g} {mean:.3f}   {min(found):.3f} to {max(found):.3f}")
        axes.plot(rates, means, "o-", color=COLORS[optimizer], label=optimizer)
    ticks = sorted({rate for rates in RATES.values() for rate in rates})
    axes.set(xscale="log", xlabel="highest learning rate", ylabel="val loss (nats)")
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks], minor=False)
    axes.minorticks_off()
    axes.legend(loc="upper center")


if __name__ == "__main__":
    save("two_sweeps", draw, height=3.2)
