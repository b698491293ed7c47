"""Learning rates and optimizers next to nanoGPT's, PyTorch's AdamW and Muon in NumPy; Muon on a mesh."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from config.options import Options
from model import GPTConfig
from parallel.mesh import make_mesh
from tests.helpers import named_arrays, random_batch, slowly
from tests.models import changed
from training.lora import add_adapters, partition_trainable
from training.optimizer import learning_rate, make_optimizer
from training.state import create_state, model_config
from training.step import compile_step


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
        dict(warmup_iters=10, lr_decay_iters=11),
        dict(warmup_iters=20, lr_decay_iters=10),
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
    for schedule in ("cosine", "wsd", "constant"):
        for step in (0, 5, 15, 30):
            assert learning_rate(replace(options, schedule=schedule), step) == np.float32(3e-4)


@pytest.mark.parametrize(
    "schedule, warmup, end", [("wsd", 10, 100), ("wsd", 0, 7), ("wsd", 90, 100), ("constant", 3, 5)]
)
def test_other_schedules_warm_up_and_stay_and_wsd_decays_in_the_last_fifth(schedule, warmup, end):
    options = replace(Options(), schedule=schedule, learning_rate=1.0, min_lr=0.25)
    options = replace(options, warmup_iters=warmup, lr_decay_iters=end)
    last, start = (0.25 if schedule == "wsd" else 1.0), max(warmup, 0.8 * end)
    corners = [(0, 1 / (warmup + 1)), (warmup, 1.0), (start, 1.0), (end, last), (2 * end, last)]
    steps = np.arange(2 * end)
    ours = jax.vmap(lambda step: learning_rate(options, step))(jnp.array(steps))
    # Float32 holds a part of the decay to 2^-24, after a step number below 2^8 minus the start of the decay.
    tolerance = 2**-15 if schedule == "wsd" else 2**-24
    np.testing.assert_allclose(ours, np.interp(steps, *zip(*corners, strict=True)), rtol=0, atol=tolerance)


def test_the_longest_warmup_that_is_allowed_warms_up():
    options = replace(Options(), warmup_iters=2**31 - 1)
    assert float(learning_rate(options, 0)) == pytest.approx(options.learning_rate / 2**31)


# Every kind of parameter there is: biases, norms of queries and keys, and a head of its own.
EVERYTHING = GPTConfig(
    **dict(block_size=8, vocab_size=11, n_layer=2, n_head=4, n_kv_head=2, n_embd=16),
    **dict(bias=True, qk_norm=True, tie_embeddings=False),
)
MATRICES = {
    *(f"blocks.attn.{name}.weight" for name in ("c_q", "c_k", "c_v", "c_proj")),
    *(f"blocks.mlp.{name}.weight" for name in ("c_gate", "c_fc", "c_proj")),
}
GATE = "blocks.mlp.c_gate.weight"  # a swiglu MLP's alone
DECAYED = MATRICES | {"wte", "wpe", "lm_head"}


def everything(**changes):
    """A model of random parameters, those included that start out as zeros and ones."""
    return random_like(jax.eval_shape(changed(EVERYTHING, **changes).build, jax.random.key(0)), 0)


def random_like(tree, seed):
    leaves, structure = jax.tree.flatten(tree)
    rng = np.random.default_rng(seed)
    return structure.unflatten([jnp.asarray(rng.standard_normal(x.shape), x.dtype) for x in leaves])


def first_updates(options, model, gradients):
    """The first step's change of each array, by name."""
    optimizer = make_optimizer(options)
    return named_arrays(jax.jit(optimizer.update)(gradients, optimizer.init(model), model)[0])


@pytest.mark.parametrize("optimizer", ["adamw", *slowly("muon")])
def test_in_mup_hidden_matrices_have_learning_rates_of_their_own(optimizer):
    model = everything()
    gradients = random_like(model, 1)
    options = replace(STEPS, optimizer=optimizer, n_embd=EVERYTHING.n_embd, weight_decay=0.0)
    # The model is four times as wide as its base. Muon's steps are half as large: a constant spectral norm.
    factors = dict.fromkeys(MATRICES, 1 / 2 if "muon" in optimizer else 1 / 4)
    # Where the base's heads are as wide, those of queries, keys and values grow on the input's side alone.
    as_wide = factors | {name: 1 / 4 for name in MATRICES if name.split(".")[-2] in ("c_q", "c_k", "c_v")}

    one = first_updates(options, model, gradients)
    for base_n_head, expected in ((0, factors), (options.n_head // 4, as_wide)):
        base = dict(mup_base_width=EVERYTHING.n_embd // 4, mup_base_n_head=base_n_head)
        other = first_updates(replace(options, **base), model, gradients)
        assert expected.keys() < one.keys()
        for name, update in one.items():
            np.testing.assert_allclose(other[name], expected.get(name, 1) * update, rtol=2**-20, err_msg=name)
            assert np.abs(update).max() > 1e-3, name


@pytest.mark.parametrize("optimizer", ["adamw", *slowly("muon")])
def test_in_mup_an_adapters_a_has_the_rate_of_hidden_matrices_and_its_b_the_given_one(optimizer):
    """A reads as many inputs as the model is wide; what B reads is of the adapter's rank at every width."""
    options = replace(STEPS, optimizer=optimizer, n_embd=EVERYTHING.n_embd, weight_decay=0.0, lora_rank=2)
    adapters, _ = partition_trainable(add_adapters(everything(), options, jax.random.key(0)))
    one, other = (
        first_updates(replace(options, mup_base_width=width), adapters, random_like(adapters, 1))
        for width in (0, EVERYTHING.n_embd // 4)
    )
    for name, update in one.items():
        factor = 1 / 4 if name.endswith("lora_a") else 1
        np.testing.assert_allclose(other[name], factor * update, rtol=2**-20, err_msg=name)
        assert np.abs(update).max() > 1e-3, name


def torch_parameters_after(model, gradients, options):
    """What nanoGPT's optimizer makes of the parameters, in float64, by name."""
    parameters = {name: torch.tensor(x, dtype=torch.float64) for name, x in named_arrays(model).items()}
    groups = [
        {"params": [p for name, p in parameters.items() if name in DECAYED], "weight_decay": 0.1},
        {"params": [p for name, p in parameters.items() if name not in DECAYED], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(options.beta1, options.beta2))
    for it, gradient in enumerate(gradients):
        for name, x in named_arrays(gradient).items():
            parameters[name].grad = torch.tensor(x, dtype=torch.float64)
        if options.grad_clip:
            torch.nn.utils.clip_grad_norm_(parameters.values(), options.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = nanogpt_learning_rate(options, it)
        optimizer.step()
    return {name: p.numpy() for name, p in parameters.items()}


def ours_after(model, gradients, options):
    """What our optimizer makes of the parameters, by name."""
    optimizer = make_optimizer(options)
    state, update = optimizer.init(model), jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, model)
        model = optax.apply_updates(model, updates)
    return named_arrays(model)


# The norm of all parameters' gradients is about 100 times these: some steps are clipped, others are not.
SCALES = [1e-3, 1.0, 1e-2, 2e-3, 0.3, 1e-3, 5.0, 1e-3]
STEPS = replace(Options(), learning_rate=0.1, min_lr=0.01, warmup_iters=2, lr_decay_iters=6)


def some_gradients(model):
    return [jax.tree.map(lambda x, c=c: c * x, random_like(model, i)) for i, c in enumerate(SCALES)]


@pytest.mark.parametrize("grad_clip", [1.0, 0.0])
def test_an_update_is_that_of_pytorchs_adamw_with_nanogpts_groups(grad_clip):
    options = replace(STEPS, grad_clip=grad_clip)
    assert options.weight_decay == 0.1
    start = everything()
    gradients = some_gradients(start)
    expected = torch_parameters_after(start, gradients, options)
    other = torch_parameters_after(start, gradients, replace(options, grad_clip=1.0 - grad_clip))
    for name, ours in ours_after(start, gradients, options).items():
        # A step moves a parameter by up to about the learning rate, exact to some 20 roundings of 2^-24, and
        # rounds the parameter, below 8, once. torch divides by norm + 1e-6, which is less.
        np.testing.assert_allclose(ours, expected[name], rtol=0, atol=len(SCALES) * (0.1 * 20 + 8) * 2**-24)
        assert np.abs(ours - other[name]).max() > 1e-3  # so clipping is seen


def numpy_parameter_after(name, model, gradients, options, direction):
    """What steps along `direction(gradients so far)` make of a parameter, in float64."""
    parameter, history = named_arrays(model)[name].astype(np.float64), []
    for it, gradient in enumerate(gradients):
        gradient = {name: x.astype(np.float64) for name, x in named_arrays(gradient).items()}
        norm = math.sqrt(sum(np.square(x).sum() for x in gradient.values()))
        history.append(gradient[name] * min(1, options.grad_clip / norm))
        decay = options.weight_decay * (name in DECAYED)
        parameter -= nanogpt_learning_rate(options, it) * (direction(history) + decay * parameter)
    return parameter


def running_mean(history, beta):
    return sum((1 - beta) * beta**age * x for age, x in enumerate(reversed(history)))


def newton_schulz(matrices):
    """Five quintic iterations on each matrix (..., in, out), as in kellerjordan.github.io/posts/muon."""
    x = matrices / np.linalg.norm(matrices, axis=(-2, -1), keepdims=True)
    for _ in range(5):
        gram = x @ x.swapaxes(-2, -1)
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x


def newton_schulz_error(matrices, rounding):
    """How far an element may be off after `newton_schulz`, if each iteration adds `rounding` to a norm of 1.

    An iteration magnifies an error by up to 4: it takes the singular values, from 0 to 1.21, through a
    polynomial that is nowhere steeper. The error of a matrix, and so of its elements, is at most the sum.
    """
    return 0.2 * math.sqrt(max(matrices.shape[-2:])) * sum(4**i for i in range(6)) * rounding


@pytest.mark.parametrize("mlp", ["swiglu", *slowly("gelu")])
def test_muon_orthogonalises_every_layers_every_heads_matrices_and_leaves_the_rest_to_adamw(mlp):
    options = replace(STEPS, optimizer="muon")
    b1 = options.beta1

    def direction(history):
        # Nesterov's mean, each term corrected for having started from zero, as in Nesterov's Adam.
        t = len(history)
        ahead = b1 * running_mean(history, b1) / (1 - b1 ** (t + 1)) + (1 - b1) * history[-1] / (1 - b1**t)
        update = newton_schulz(np.moveaxis(ahead, 1, -2))  # (L, [heads,] in, out)
        return np.moveaxis(0.2 * math.sqrt(max(update.shape[-2:])) * update, -2, 1)

    start = everything(mlp=mlp)
    gradients = some_gradients(start)
    ours = ours_after(start, gradients, options)
    rest = torch_parameters_after(start, gradients, options)
    matrices = MATRICES if mlp == "swiglu" else MATRICES - {GATE}
    assert ours.keys() > matrices
    for name in ours.keys() - matrices:
        tolerance = len(SCALES) * (0.1 * 20 + 8) * 2**-24  # as for AdamW
        np.testing.assert_allclose(ours[name], rest[name], rtol=0, atol=tolerance, err_msg=name)
    for name in matrices:
        expected = numpy_parameter_after(name, start, gradients, options, direction)
        # The sums of up to 64 products are off by sqrt(64) roundings of 2^-24, as those are independent.
        tolerance = len(SCALES) * 0.1 * newton_schulz_error(np.moveaxis(expected, 1, -2), rounding=2**-21)
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=tolerance, err_msg=name)


TINY = Options(
    **dict(n_layer=2, n_head=4, n_kv_head=2, n_embd=16, block_size=8, batch_size=4),
    **dict(gradient_accumulation_steps=1, warmup_iters=0, learning_rate=0.1, grad_clip=0.0),
)


def first_step(mesh, options):
    """The states before and after one step on a mesh."""
    with jax.set_mesh(make_mesh(mesh)):
        config = model_config(options, vocab_size=16)
        before = create_state(config, options)
        x, y = random_batch(options, vocab_size=16)
        after, _ = compile_step(before, options)(jax.tree.map(jnp.copy, before), x, y)
        return before, after


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data:2,fsdp:2,tensor:2", "stage:2,fsdp:2,tensor:2"])
def test_muons_step_on_a_mesh_is_that_on_one_device(mesh):
    """Matrices are split along all axes, those that Newton-Schulz sums over as well."""
    options = replace(TINY, optimizer="muon")
    (before, one), (_, eight) = (first_step(mesh, options) for mesh in ("data:1", mesh))
    momentum_on_one, momentum_on_eight = named_arrays(one.opt_state), named_arrays(eight.opt_state)
    before, on_one, on_eight = named_arrays(before.model), named_arrays(one.model), named_arrays(eight.model)
    # A gradient comes of some ten products in a row, of sums of up to 64 products: 10 sqrt(64) 2^-24 < 2^-17.
    rounding = 2**-17
    for name in MATRICES:
        [momentum] = [long for long in momentum_on_one if long.endswith(f".mu.{name}")]
        largest = np.abs(momentum_on_one[momentum]).max()
        np.testing.assert_allclose(
            momentum_on_eight[momentum], momentum_on_one[momentum], rtol=0, atol=rounding * largest
        )
        tolerance = 0.1 * newton_schulz_error(np.moveaxis(before[name], 1, -2), rounding)
        np.testing.assert_allclose(on_eight[name], on_one[name], rtol=0, atol=tolerance, err_msg=name)
        assert np.abs(on_one[name] - before[name]).max() > 10 * tolerance, name
