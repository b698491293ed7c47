"""The training step: accumulation, dropout, donation, and that it learns."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from config.options import Options
from evaluation.split import compile_loss
from layers.products import contract
from parallel.mesh import make_mesh
from tests.helpers import (
    CPU,
    FLOAT32_ROUNDING,
    H100,
    V5E,
    assert_close,
    assert_same_bits,
    named_arrays,
    on,
    random_batch,
    refusal,
)
from training import step as step_module
from training.optimizer import learning_rate
from training.state import create_state, model_config
from training.step import (
    SEVERAL,
    compile_step,
    compiler_options,
    mean_gradients,
    split_for_cpu_cache,
    train_step,
)

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


@pytest.fixture(scope="module")
def tiny_step():
    """The compiled step of TINY, which tests share."""
    return compile_step(create(TINY), TINY)


# --- one step -----------------------------------------------------------------------------------------------


def test_a_step_has_z_loss_in_its_loss_and_an_evaluation_has_not():
    options = replace(TINY, gradient_accumulation_steps=1, z_loss=0.5)
    model, (x, y) = create(options).model, random_batch(options, V)
    logits = np.asarray(jax.jit(lambda model: model(x[0]))(model), np.float64)
    log_sums = np.log(np.exp(logits).sum(-1))
    nll = (log_sums - np.take_along_axis(logits, y[0][..., None], -1)[..., 0]).mean()
    loss, _ = jax.jit(lambda model: mean_gradients(model, x, y, None, z_loss=options.z_loss))(model)
    np.testing.assert_allclose(loss, nll + 0.5 * (log_sums**2).mean(), rtol=FLOAT32_ROUNDING)
    np.testing.assert_allclose(compile_loss(model, options)(model, x[0], y[0]), nll, rtol=FLOAT32_ROUNDING)


def test_microbatches_make_the_loss_and_gradients_of_one_batch():
    model = create(TINY).model
    x, y = random_batch(TINY, V)
    gradients = jax.jit(lambda model, x, y: mean_gradients(model, x, y, None))
    loss, parts = gradients(model, x, y)
    whole_loss, whole = gradients(model, x.reshape(1, 8, 8), y.reshape(1, 8, 8))
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
def test_microbatches_are_split_for_a_cpus_cache_and_no_row_is_lost(shape, split):
    x = np.arange(np.prod(shape)).reshape(shape)
    parts = np.asarray(split_for_cpu_cache(jnp.asarray(x)))
    assert parts.shape == split
    np.testing.assert_array_equal(np.sort(parts.reshape(-1, shape[2]), axis=0), x.reshape(-1, shape[2]))


def test_every_device_keeps_its_rows_when_microbatches_are_split():
    with jax.set_mesh(make_mesh("data:4,tensor:2")):
        parts = jax.jit(split_for_cpu_cache)(np.arange(2 * 24 * 256).reshape(2, 24, 256))
    assert parts.shape == (6, 8, 256)  # of 24 rows a device has 6, a row of every part 2
    rows = np.asarray(parts)[:, :, 0] // 256 % 24
    assert (rows // 6 == np.arange(8) // 2).all()


@pytest.mark.slow
def test_only_a_cpu_splits_microbatches_and_the_step_stays_the_same(monkeypatch):
    options = replace(TINY, batch_size=8, gradient_accumulation_steps=1)
    x, y = random_batch(options, V)
    whole = compile_step(create(options), options)
    monkeypatch.setattr(step_module, "CPU_TOKENS", 16)
    jax.clear_caches()  # the step is traced again, with the changed constant
    parts = compile_step(create(options), options)
    needed, less = (step.memory_analysis().temp_size_in_bytes for step in (whole, parts))
    assert less < needed
    (_, one), (_, many) = (step(create(options), x, y) for step in (whole, parts))
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(many[name], one[name], rtol=FLOAT32_ROUNDING)
    seen = []
    monkeypatch.setattr(step_module, "mean_gradients", lambda m, x, *_: (seen.append(x.shape), m))
    jax.clear_caches()
    with on(*H100):
        jax.eval_shape(partial(train_step, options=options), create(options), x, y)
    assert seen == [x.shape]


def test_metrics_are_the_loss_the_unclipped_norm_and_the_rate_of_this_step(tiny_step):
    model, (x, y) = create(TINY).model, random_batch(TINY, V)
    loss, gradients = jax.jit(lambda model: mean_gradients(model, x, y, None))(model)
    norm = np.sqrt(sum((g**2).sum() for g in named_arrays(gradients).values()))
    state, metrics = tiny_step(create(TINY), x, y)
    assert set(metrics) == {"loss", "grad_norm", "lr"}
    assert all(m.dtype == jnp.float32 and m.shape == () and jnp.isfinite(m) for m in metrics.values())
    np.testing.assert_allclose(metrics["loss"], loss, rtol=FLOAT32_ROUNDING)
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=FLOAT32_ROUNDING)
    assert norm > TINY.grad_clip  # so it is the norm before clipping
    assert metrics["lr"] == learning_rate(TINY, 0)
    assert state.step == 1 and state.step.dtype == jnp.int32
    _, metrics = tiny_step(state, x, y)
    assert metrics["lr"] == learning_rate(TINY, 1)


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
    loss, _ = jax.jit(lambda model: mean_gradients(model, x, y, None))(create(TINY).model)
    np.testing.assert_allclose(evaluate(model, x[0], y[0]), loss, rtol=FLOAT32_ROUNDING)
    assert evaluate(model, x[0], y[0]) == evaluate(model, x[0], y[0])


# --- dropout ------------------------------------------------------------------------------------------------


def test_each_microbatch_has_dropout_of_its_own():
    options = replace(TINY, dropout=0.2, gradient_accumulation_steps=1)
    model, (x, y) = create(options).model, random_batch(options, V)
    x, y, ignored = np.repeat(x, 2, 0), y[0], np.full_like(y[0], -1)  # the same tokens twice
    loss = jax.jit(lambda y, key: mean_gradients(model, x, y, key)[0])
    first, second = np.stack([y, ignored]), np.stack([ignored, y])  # the loss counts one of the two
    key = jax.random.key(0)
    assert loss(first, key) != loss(second, key)
    assert loss(first, key) == loss(first, key)
    assert loss(first, key) != loss(first, jax.random.key(1))


def test_each_step_has_dropout_of_its_own_which_the_seed_decides():
    options = replace(TINY, dropout=0.2, gradient_accumulation_steps=1)
    state, (x, y) = create(options), random_batch(options, V)

    @partial(jax.jit, static_argnums=1)
    def loss(i, options):
        """Of step i on the same weights and the same batch."""
        return train_step(replace(state, step=i), x, y, options)[1]["loss"]

    at_steps = [float(loss(i, options)) for i in (0, 1, 2, 0)]
    assert len(set(at_steps[:3])) == 3
    assert at_steps[0] == at_steps[3]
    assert abs(loss(0, replace(options, seed=7)) - at_steps[0]) > FLOAT32_ROUNDING * at_steps[0]


@pytest.mark.parametrize("kind", [CPU, H100, V5E])
def test_xla_has_options_for_several_devices_unless_the_user_says_otherwise(monkeypatch, kind):
    options = SEVERAL.get(kind[1], {})
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
    jax.jit(jnp.sin).lower(1.0).compile(compiler_options=SEVERAL["gpu"])
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(jnp.sin).lower(1.0).compile(compiler_options={"xla_gpu_no_such_option": True})


# --- learning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mlp, dtype",
    [
        ("swiglu", "float32"),
        ("gelu", "bfloat16"),
        pytest.param("swiglu", "bfloat16", marks=pytest.mark.slow),
        pytest.param("gelu", "float32", marks=pytest.mark.slow),
    ],
)
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


# --- the model that options describe ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device, changes, dtype, attention",
    [
        (CPU, {}, "float32", "einsum"),
        (CPU, dict(dtype="bfloat16"), "bfloat16", "einsum"),
        (H100, {}, "bfloat16", "cudnn"),
        (H100, dict(attention="cudnn"), "bfloat16", "cudnn"),
        (H100, dict(attention="einsum"), "bfloat16", "einsum"),
        (H100, dict(dtype="float32"), "float32", "einsum"),
        (H100, dict(n_embd=24), "bfloat16", "einsum"),  # heads of 12
        (V5E, {}, "bfloat16", "einsum"),  # rows of 8 tokens
        (V5E, dict(block_size=128), "bfloat16", "splash"),
        (V5E, dict(block_size=128, dtype="float32"), "float32", "splash"),
    ],
)
def test_the_devices_of_the_mesh_decide_dtype_and_attention(device, changes, dtype, attention):
    with on(*device):
        config = model_config(replace(TINY, **changes), V)
    assert (config.dtype, config.attention, config.vocab_size) == (dtype, attention, V)


@pytest.mark.parametrize("device, out", [(CPU, jnp.float32), (H100, jnp.bfloat16), (V5E, jnp.bfloat16)])
def test_products_are_rounded_where_that_saves_memory_traffic(device, out):
    x = jnp.zeros((1, 2, 2))
    with on(*device):
        assert contract("btd,btd->bt", x, x, "bfloat16").dtype == out


@pytest.mark.parametrize(
    "device, changes, says",
    [
        (CPU, dict(attention="splash"), "attention=splash needs a TPU; use attention=auto"),
        (H100, dict(attention="splash"), "attention=splash needs a TPU; use attention=auto"),
        (H100, dict(attention="cudnn", dtype="float32"), "attention=cudnn needs an NVIDIA GPU, "),
        (H100, dict(attention="cudnn", dropout=0.1), "attention=cudnn needs dropout=0; use attention=auto"),
        (V5E, dict(attention="splash"), "attention=splash needs a block_size that is a multiple of 128"),
    ],
)
def test_attention_that_cannot_be_as_asked_for_is_refused_with_the_reason(device, changes, says):
    with on(*device):
        assert refusal(model_config, replace(TINY, **changes), V).startswith(says)


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(n_embd=33), "n_embd=33"),
        (dict(n_kv_head=3), "n_kv_head=3"),
        (dict(position="rope", n_embd=6), "rope"),
        (dict(attention="cudnn", dtype="float32"), "attention=cudnn"),
    ],
)
def test_a_model_that_cannot_be_is_one_line(changes, named):
    assert named in refusal(model_config, replace(TINY, **changes), V)


@pytest.mark.parametrize(
    "name", ["n_layer", "n_head", "n_embd", "mlp", "norm", "bias", "dropout", "unroll", "remat", "window"]
)
def test_the_options_reach_the_model(name):
    values = dict(
        n_layer=3, n_head=4, n_embd=64, mlp="gelu", norm="rmsnorm", bias=True, dropout=0.3, unroll=2
    ) | dict(remat="dots", window=3)
    assert getattr(model_config(replace(TINY, **values), V), name) == values[name]


@pytest.mark.parametrize("unroll, on_cpu", [(0, 1), (1, 1), (2, 2), (3, 1), (4, 1)])
def test_remat_keeps_the_layers_a_loop_on_a_cpu_only(unroll, on_cpu):
    options = replace(TINY, n_layer=3, unroll=unroll, remat="block")
    assert model_config(options, V).unroll == on_cpu
    assert model_config(replace(options, remat="none"), V).unroll == unroll
    with on(*H100):
        assert model_config(options, V).unroll == unroll


@pytest.mark.slow
def test_remat_needs_less_memory_for_the_same_step():
    options = replace(TINY, n_layer=4, block_size=64, batch_size=8, gradient_accumulation_steps=1, unroll=0)
    options = replace(options, dropout=0.1)
    x, y = random_batch(options, V)
    needed, losses = {}, {}
    for remat in ("none", "dots", "block"):
        changed = replace(options, remat=remat)
        step = compile_step(create(changed), changed)
        needed[remat] = step.memory_analysis().temp_size_in_bytes
        state, first = step(create(changed), x, y)
        losses[remat] = [first["loss"], step(state, x, y)[1]["loss"]]
    assert needed["block"] < needed["dots"] < 0.7 * needed["none"]
    # Adam divides a gradient by its size: in the second loss a near-zero gradient's rounding weighs more, up
    # to a few steps of learning_rate in a weight, so a digit is lost.
    np.testing.assert_allclose(losses["block"], losses["none"], rtol=10 * FLOAT32_ROUNDING)
    np.testing.assert_allclose(losses["dots"], losses["none"], rtol=10 * FLOAT32_ROUNDING)


def test_document_mask_gives_the_model_the_end_of_text_token():
    assert model_config(replace(TINY, document_mask=True), V, 7).eot == 7
    assert model_config(TINY, V, 7).eot is None
    said = refusal(model_config, replace(TINY, document_mask=True), V)
    assert said.startswith("document_mask=True ") and "dataset=openwebtext" in said
