"""The optimizer: nanoGPT's learning rate, and PyTorch's AdamW on nanoGPT's two groups of parameters."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from config.options import Options
from model import GPT, GPTConfig
from training.optimizer import learning_rate, make_optimizer

# Every kind of parameter there is: biases, norms of queries and keys, and a head of its own.
EVERYTHING = GPTConfig(
    block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=16, bias=True, qk_norm=True, tie_embeddings=False
)
DECAYED = {
    *("wte", "wpe", "lm_head"),
    *("blocks.attn.c_attn.weight", "blocks.attn.c_proj.weight"),
    *("blocks.mlp.c_fc.weight", "blocks.mlp.c_proj.weight"),
}


def nanogpt_learning_rate(o, it):
    if it < o.warmup_iters:
        return o.learning_rate * (it + 1) / (o.warmup_iters + 1)
    if it > o.lr_decay_iters:
        return o.min_lr
    ratio = (it - o.warmup_iters) / (o.lr_decay_iters - o.warmup_iters)
    return o.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (o.learning_rate - o.min_lr)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(warmup_iters=0, lr_decay_iters=100, learning_rate=1.0, min_lr=0.0),
        dict(warmup_iters=100, lr_decay_iters=5000, learning_rate=1e-3, min_lr=1e-4),
        dict(warmup_iters=10, lr_decay_iters=11),
    ],
)
def test_learning_rate_is_nanogpts(changes):
    options = replace(Options(), **changes)
    warmup, end = options.warmup_iters, options.lr_decay_iters
    marks = {0, 1, warmup - 1, warmup, warmup + 1, (warmup + end) // 2, end - 1, end, end + 1, 2 * end}
    steps = sorted({step for step in marks | set(range(0, 2 * end, max(end // 50, 1))) if step >= 0})
    ours = jax.vmap(lambda step: learning_rate(options, step))(jnp.array(steps))
    assert ours.dtype == jnp.float32
    # Float32 holds the angle, at most pi, to about 2^-22, and so the cosine: 1e-6 of the highest rate.
    theirs = [nanogpt_learning_rate(options, step) for step in steps]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * options.learning_rate)


def test_the_learning_rate_is_constant_without_decay():
    options = replace(Options(), decay_lr=False, learning_rate=3e-4, warmup_iters=10, lr_decay_iters=20)
    for step in (0, 5, 15, 30):
        assert learning_rate(options, jnp.array(step)) == np.float32(3e-4)


def everything():
    """A model of random parameters, those included that start out as zeros and ones."""
    model = jax.jit(lambda: GPT(EVERYTHING, key=jax.random.key(0)))()
    return random_like(model, 0)


def random_like(tree, seed):
    leaves, structure = jax.tree.flatten(tree)
    rng = np.random.default_rng(seed)
    return structure.unflatten([jnp.asarray(rng.standard_normal(x.shape), x.dtype) for x in leaves])


def by_name(tree):
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(x) for path, x in paths}


def test_exactly_the_matrices_and_embeddings_decay():
    options = replace(Options(), learning_rate=0.5, weight_decay=0.5, decay_lr=False)
    model = everything()
    optimizer = make_optimizer(options)
    zero = jax.tree.map(jnp.zeros_like, model)
    updates, _ = jax.jit(optimizer.update)(zero, optimizer.init(model), model)
    before = by_name(model)
    for name, after in by_name(optax.apply_updates(model, updates)).items():
        np.testing.assert_array_equal(after, 0.75 * before[name] if name in DECAYED else before[name], name)
    assert DECAYED < set(before)


def torch_parameters_after(model, gradients, options):
    """What nanoGPT's optimizer makes of the parameters, in float64, by name."""
    parameters = {name: torch.tensor(x, dtype=torch.float64) for name, x in by_name(model).items()}
    groups = [
        {"params": [p for name, p in parameters.items() if name in DECAYED], "weight_decay": 0.1},
        {"params": [p for name, p in parameters.items() if name not in DECAYED], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(options.beta1, options.beta2))
    for it, gradient in enumerate(gradients):
        for name, x in by_name(gradient).items():
            parameters[name].grad = torch.tensor(x, dtype=torch.float64)
        if options.grad_clip:
            torch.nn.utils.clip_grad_norm_(parameters.values(), options.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = nanogpt_learning_rate(options, it)
        optimizer.step()
    return {name: p.numpy() for name, p in parameters.items()}


@pytest.mark.parametrize("grad_clip", [1.0, 0.0])
def test_an_update_is_that_of_pytorchs_adamw_with_nanogpts_groups(grad_clip):
    options = replace(
        Options(), learning_rate=0.1, min_lr=0.01, warmup_iters=2, lr_decay_iters=6, grad_clip=grad_clip
    )
    assert options.weight_decay == 0.1
    start = everything()
    # The norm of all parameters' gradients is about 100 times these: some steps are clipped, others are not.
    scales = [1e-3, 1.0, 1e-2, 2e-3, 0.3, 1e-3, 5.0, 1e-3]
    gradients = [jax.tree.map(lambda x, c=c: c * x, random_like(start, i)) for i, c in enumerate(scales)]
    optimizer = make_optimizer(options)
    model, state, update = start, optimizer.init(start), jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, model)
        model = optax.apply_updates(model, updates)

    expected = torch_parameters_after(start, gradients, options)
    other = torch_parameters_after(start, gradients, replace(options, grad_clip=1.0 - grad_clip))
    for name, ours in by_name(model).items():
        # A step moves a parameter by up to about the learning rate, exact to some 20 roundings of 2^-24, and
        # rounds the parameter, below 8, once. torch divides by norm + 1e-6, which is less.
        np.testing.assert_allclose(ours, expected[name], rtol=0, atol=len(scales) * (0.1 * 20 + 8) * 2**-24)
        assert np.abs(ours - other[name]).max() > 1e-3  # so clipping is seen
