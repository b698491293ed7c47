"""The training step: accumulation, dropout, donation, and that it learns."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from config.options import Options
from layers.compute import current_mesh
from parallel.mesh import make_mesh
from tests.helpers import (
    CPU,
    FLOAT32_ROUNDING,
    H100,
    V5E,
    assert_close,
    assert_same_bits,
    mean_gradients,
    named_arrays,
    on,
    random_batch,
)
from training import recipe
from training.evaluation import compile_loss
from training.recipe import (
    MULTI_DEVICE_OPTIONS,
    choose_value_and_grad,
    compile_step,
    compiler_options,
    cpu_parts,
    cut,
    deferred_reduction_axes,
    make_recipe,
    microbatch_value_and_grad,
)
from training.state import create_state, model_config
from training.step import train_step

V = 65
TINY = replace(
    Options(),
    **dict(n_layer=2, n_head=2, n_embd=32, block_size=8, batch_size=2, gradient_accumulation_steps=4),
    unroll=1,  # compiles fastest
    **dict(learning_rate=1e-2, min_lr=1e-3, warmup_iters=5, lr_decay_iters=100, grad_clip=0.1),
)


@cache
def created(options):
    return create_state(model_config(options, V), options)


def create(options):
    """The first state, which may be consumed."""
    return jax.tree.map(jnp.copy, created(options))


gradients = jax.jit(mean_gradients, static_argnums=0)


@pytest.fixture(scope="module")
def tiny_step():
    """The compiled step of TINY, which tests share."""
    return compile_step(create(TINY), TINY)


# --- one step -----------------------------------------------------------------------------------------------


def test_microbatches_make_the_loss_and_gradients_of_one_batch():
    one = replace(TINY, batch_size=8, gradient_accumulation_steps=1)
    model, (x, y) = create(TINY).model, random_batch(TINY, V)
    loss, parts = gradients(TINY, model, x, y)
    whole_loss, whole = gradients(one, model, x.reshape(1, 8, 8), y.reshape(1, 8, 8))
    np.testing.assert_allclose(loss, whole_loss, rtol=FLOAT32_ROUNDING)
    assert jax.tree.structure(parts) == jax.tree.structure(whole)
    assert all(part.dtype == jnp.float32 for part in jax.tree.leaves(parts))
    assert_close(parts, whole)


@pytest.mark.parametrize(
    "shape, split",
    {
        (1, 64, 256): (8, 8, 256),  # the baby GPT's
        (1, 12, 64): (1, 12, 64),  # small enough
        (5, 12, 1024): (30, 2, 1024),  # GPT-2's
        (1, 9, 1024): (9, 1, 1024),  # no divisor in between
        (2, 3, 4096): (6, 1, 4096),  # a row is not split
    }.items(),
)
def test_a_cpu_cuts_microbatches_and_no_row_is_lost(shape, split):
    parts = cut_on_a_cpu(np.arange(np.prod(shape)).reshape(shape))
    assert parts.shape == split
    np.testing.assert_array_equal(np.sort(parts.ravel()), np.arange(parts.size))
    assert (np.diff(parts) == 1).all()


def cut_on_a_cpu(x):
    """What a CPU's step makes of the microbatches x (A, B, T)."""
    A, B, T = x.shape
    options = replace(TINY, gradient_accumulation_steps=A, batch_size=B, block_size=T)
    return np.asarray(cut(x, cpu_parts(options, current_mesh())))


def test_every_device_keeps_its_rows_when_microbatches_are_cut():
    with jax.set_mesh(make_mesh("data:4,tensor:2")):
        parts = cut_on_a_cpu(np.arange(2 * 24 * 256).reshape(2, 24, 256))
    assert parts.shape == (6, 8, 256)  # of 24 rows a device has 6, a row of every part 2
    rows = parts[:, :, 0] // 256 % 24
    assert (rows // 6 == np.arange(8) // 2).all()


def test_only_a_cpu_cuts_microbatches_and_the_step_stays_the_same(monkeypatch):
    options = replace(TINY, batch_size=8, gradient_accumulation_steps=1)
    x, y = random_batch(options, V)
    whole = compile_step(create(options), options)
    monkeypatch.setattr(recipe, "CPU_TOKENS", 16)
    jax.clear_caches()  # the step is traced again, with the changed constant
    parts = compile_step(create(options), options)
    needed, less = (step.memory_analysis().temp_size_in_bytes for step in (whole, parts))
    assert less < needed
    (_, one), (_, many) = (step(create(options), x, y) for step in (whole, parts))
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(many[name], one[name], rtol=FLOAT32_ROUNDING)
    model = create(options).model
    assert choose_value_and_grad(options, model) is not microbatch_value_and_grad
    with on(*H100):
        assert choose_value_and_grad(options, model) is microbatch_value_and_grad


@pytest.mark.parametrize("spare, axes", [(1, ("fsdp",)), (0, ())])
def test_weights_are_gathered_once_a_step_if_they_and_gradients_take_less_than_an_eighth_of_the_memory(
    monkeypatch, spare, axes
):
    model = created(TINY).model
    both = 2 * 4 * sum(x.size for x in jax.tree.leaves(model))
    monkeypatch.setattr(recipe, "memory", lambda: 8 * both + spare)
    with jax.set_mesh(make_mesh("fsdp:2")):
        assert deferred_reduction_axes(model, current_mesh()) == axes


# --- the recipe ---------------------------------------------------------------------------------------------


def test_a_plain_call_computes_what_the_compiled_step_does(tiny_step):
    x, y = map(jnp.asarray, random_batch(TINY, V))
    for _ in range(2):
        state, metrics = train_step(create(TINY), x, y, make_recipe(TINY, create(TINY)))
    assert_close((state, metrics), tiny_step(create(TINY), x, y))


def test_recipes_of_equal_options_are_equal_and_compile_once():
    first, second, other = (make_recipe(replace(TINY, beta2=b), create(TINY)) for b in (0.95, 0.95, 0.9))
    assert first == second != other and hash(first) == hash(second)
    batch = random_batch(TINY, V)
    train_step(create(TINY), *batch, first)
    train_step(create(TINY), *batch, replace(second, value_and_grad=None))  # which fails if it is traced


def test_metrics_are_the_loss_the_unclipped_norm_and_the_rate_of_this_step(tiny_step):
    model, (x, y) = create(TINY).model, random_batch(TINY, V)
    loss, gradient = gradients(TINY, model, x, y)
    norm = np.sqrt(sum((g**2).sum() for g in named_arrays(gradient).values()))
    state, metrics = tiny_step(create(TINY), x, y)
    assert set(metrics) == {"loss", "grad_norm", "lr"}
    assert all(m.dtype == jnp.float32 and m.shape == () and jnp.isfinite(m) for m in metrics.values())
    np.testing.assert_allclose(metrics["loss"], loss, rtol=FLOAT32_ROUNDING)
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=FLOAT32_ROUNDING)
    assert norm > TINY.grad_clip  # so it is the norm before clipping
    assert metrics["lr"] == np.float32(TINY.learning_rate / 6)  # of 5 iterations of warmup
    assert state.step == 1 and state.step.dtype == jnp.int32
    _, metrics = tiny_step(state, x, y)
    assert metrics["lr"] == np.float32(TINY.learning_rate * 2 / 6)


def test_the_state_given_is_consumed_and_the_batch_is_not(tiny_step):
    state = create(TINY)
    x, y = map(jnp.asarray, random_batch(TINY, V))
    after, _ = tiny_step(state, x, y)
    assert all(array.is_deleted() for array in jax.tree.leaves(state))
    assert not any(array.is_deleted() for array in jax.tree.leaves((after, x, y)))


def test_the_seed_decides_the_state(tiny_step):
    def after_two_steps(options):
        state = create(options)
        for i in range(2):
            state, _ = tiny_step(state, *random_batch(TINY, V, seed=i))
        return state

    assert_same_bits(after_two_steps(TINY), after_two_steps(TINY))
    ours, others = (create(replace(TINY, seed=seed)).model for seed in (TINY.seed, 7))
    assert (ours.wte != others.wte).any() and (
        ours.blocks.mlp.c_fc.weight != others.blocks.mlp.c_fc.weight
    ).any()


def test_the_loss_for_evaluation_has_no_dropout_and_leaves_the_model_whole():
    options = replace(TINY, dropout=0.5, gradient_accumulation_steps=1)
    model, (x, y) = create(options).model, random_batch(options, V)
    evaluate = compile_loss(model, options)
    loss, _ = gradients(replace(options, dropout=0.0), create(TINY).model, x, y)
    np.testing.assert_allclose(evaluate(model, x[0], y[0]), loss, rtol=FLOAT32_ROUNDING)
    assert evaluate(model, x[0], y[0]) == evaluate(model, x[0], y[0])


# --- dropout ------------------------------------------------------------------------------------------------


def test_each_microbatch_has_dropout_of_its_own():
    options = replace(TINY, dropout=0.2, gradient_accumulation_steps=2)
    model, (x, y) = create(options).model, random_batch(options, V)
    x, y, ignored = np.stack([x[0], x[0]]), y[0], np.full_like(y[0], -1)  # the same tokens twice

    def loss(y, key):
        return gradients(options, model, x, y, key)[0]

    first, second = np.stack([y, ignored]), np.stack([ignored, y])  # the loss counts one of the two
    key = jax.random.key(0)
    assert loss(first, key) != loss(second, key)
    assert loss(first, key) == loss(first, key)
    assert loss(first, key) != loss(first, jax.random.key(1))


def test_each_step_has_dropout_of_its_own_which_the_seed_decides():
    options = replace(TINY, dropout=0.2, gradient_accumulation_steps=1)
    x, y = random_batch(options, V)

    def loss(i, options):
        """Of step i on the same weights and the same batch."""
        at = replace(create(options), step=jnp.asarray(i))
        return float(train_step(at, x, y, make_recipe(options, at))[1]["loss"])

    at_steps = [loss(i, options) for i in (0, 1, 2, 0)]
    assert len(set(at_steps[:3])) == 3
    assert at_steps[0] == at_steps[3]
    assert abs(loss(0, replace(options, seed=7)) - at_steps[0]) > FLOAT32_ROUNDING * at_steps[0]


@pytest.mark.parametrize("kind", [CPU, H100, V5E])
def test_xla_has_options_for_several_devices_unless_the_user_says_otherwise(monkeypatch, kind):
    options = MULTI_DEVICE_OPTIONS.get(kind[1], {})
    assert bool(options) == (kind != CPU)
    with on(*kind):
        assert compiler_options() == {}
    with on(*kind, count=8):
        assert compiler_options() == options
        for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
            with monkeypatch.context() as patched:
                patched.setenv(variable, " ".join(f"--{name}=0" for name in options))
                assert compiler_options() == {}


def test_xla_knows_the_option_for_several_gpus():
    jax.jit(jnp.sin).lower(1.0).compile(compiler_options=MULTI_DEVICE_OPTIONS["gpu"])
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(jnp.sin).lower(1.0).compile(compiler_options={"xla_gpu_no_such_option": True})


# --- learning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mlp, dtype", [("swiglu", "float32"), ("gelu", "bfloat16")])
def test_thirty_steps_learn_a_batch_by_heart(mlp, dtype):
    options = replace(TINY, mlp=mlp, dtype=dtype, gradient_accumulation_steps=1, grad_clip=1.0)
    state, (x, y) = create(options), random_batch(options, V)
    step = compile_step(state, options)
    losses = []
    for _ in range(30):
        state, metrics = step(state, x, y)
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(np.log(V), rel=0.05)  # 16 random targets
    assert losses[-1] < np.log(2)  # on the whole, right rather than wrong about each token
    assert all(array.dtype in (jnp.float32, jnp.int32) for array in jax.tree.leaves(state))
