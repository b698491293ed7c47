"""A mesh changes where things are, never what they are: everything is compared to one device."""

import re
from collections import Counter, defaultdict
from dataclasses import replace

import jax
import numpy as np
import pytest

from config.options import Options
from parallel.mesh import make_mesh
from runs.checkpoint import Checkpoints, Manifest, arrays_by_name
from tests.helpers import (
    MODERN,
    assert_as_on_one_device,
    assert_same_bits,
    random_batch,
    save_run,
    slowly,
)
from training.state import create_state, model_config, state_shapes
from training.step import compile_step

V, T, L, A, B = 64, 12, 3, 2, 8
SMALL = Options(
    **dict(n_layer=L, n_head=8, n_embd=64, block_size=T, batch_size=B, gradient_accumulation_steps=A),
    **dict(unroll=1, learning_rate=1e-2, warmup_iters=5, lr_decay_iters=100),
)
LLAMA = replace(SMALL, position="rope", norm="rmsnorm", n_head=16, n_kv_head=8, tie_embeddings=False)
VARIANTS = {
    "gpt2, dropout": replace(SMALL, mlp="gelu", bias=True, dropout=0.2),
    "llama": replace(LLAMA, qk_norm=True),
    "swiglu, tied, one microbatch": replace(SMALL, gradient_accumulation_steps=1, qk_norm=True),
    "modern, µP, dropout": replace(SMALL, **MODERN, mup_base_width=16, dropout=0.2),
}
ALL_AXES = ("modern, µP, dropout", "data:2,fsdp:2,tensor:2")
RARE = [
    *(("gpt2, dropout", "fsdp:8"), ("gpt2, dropout", "data:8")),
    *(("llama", "tensor:8"), ("llama", "fsdp:2,tensor:4")),
    ("swiglu, tied, one microbatch", "data:4,tensor:2"),
]


def new_model(options):
    return create_state(model_config(options, V), options).model


@pytest.mark.parametrize("variant, mesh", [ALL_AXES, *slowly(*RARE)])
def test_loss_and_gradients_are_those_of_one_device(variant, mesh):
    assert_as_on_one_device(new_model, VARIANTS[variant], mesh)


@pytest.fixture
def no_room(monkeypatch):
    """A device has no room for whole weights and gradients."""
    monkeypatch.setattr("training.reduce.GATHERED_FRACTION", 0)
    jax.clear_caches()  # what was traced with room
    yield
    jax.clear_caches()


def test_a_model_too_large_to_be_whole_on_a_device_has_the_gradients_of_one_device(no_room):
    test_loss_and_gradients_are_those_of_one_device(*ALL_AXES)


def test_a_device_holds_its_part_of_weights_and_moments_alone():
    with jax.set_mesh(make_mesh("fsdp:8")):
        arrays = arrays_by_name(create_state(model_config(LLAMA, V), LLAMA))
    for name, x in arrays.items():
        part = 1 if "ln_f" in name or x.ndim == 0 else 8
        assert {shard.data.size for shard in x.addressable_shards} == {x.size // part}, name


@pytest.mark.slow
def test_the_state_is_never_whole_on_one_device_while_it_is_made():
    def planned(n):
        with jax.set_mesh(make_mesh(f"fsdp:{n}")):
            create = jax.jit(lambda: create_state(model_config(LLAMA, V), LLAMA)).lower().compile()
        plan = create.memory_analysis()  # of one device
        return plan.temp_size_in_bytes + plan.output_size_in_bytes

    assert planned(8) < planned(1) / 8 * 1.1  # the norms are whole, and small


def test_the_step_leaves_everything_where_it_was_and_uses_its_memory_again():
    """The vocabulary is one that no axis divides: its arrays are whole on every device."""
    with jax.set_mesh(make_mesh("data:2,fsdp:2,tensor:2")):
        state = create_state(model_config(LLAMA, 65), LLAMA)
        assert state.model.wte.sharding.is_fully_replicated
        before = jax.tree.map(lambda x: x.sharding, state)
        after, metrics = compile_step(state, LLAMA)(state, *random_batch(LLAMA, 65))
    assert float(metrics["loss"]) == pytest.approx(np.log(65), rel=0.05)
    assert jax.tree.leaves(before) == jax.tree.leaves(jax.tree.map(lambda x: x.sharding, after))
    assert all(x.is_deleted() for x in jax.tree.leaves(state))


COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


def collectives(mesh, microbatches=1):
    """Return what the devices of a compiled step send each other.

    For each loop's body, and for the program around the loops: the kind and shapes of every collective.
    """
    options = replace(SMALL, gradient_accumulation_steps=microbatches)
    with jax.set_mesh(make_mesh(mesh)):
        step = compile_step(state_shapes(model_config(options, V), options), options)
    text = step.as_text()
    found, body = defaultdict(list), None
    for line in text.splitlines():
        if re.match(r"(ENTRY )?%[\w.-]+ \(", line):
            body = line
        if match := re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", line):
            shapes = [tuple(map(int, dims.split(","))) for dims in re.findall(r"\w\[([\d,]+)\]", match[1])]
            found[body].append((match[2], shapes))
    return list(found.values())


@pytest.mark.slow
def test_fsdp_devices_gather_the_weights_of_one_layer_at_a_time_and_scatter_its_gradients():
    found = collectives("fsdp:8")
    D, F = 64, 192
    weights = Counter({(D, D): 4, (D, F): 2, (F, D): 1})  # q, k, v, flat, and c_proj; gate, c_fc; c_proj
    gathered = [Counter(s for kind, shapes in body if kind == "all-gather" for s in shapes) for body in found]
    forward, backward = (body for body, shapes in zip(found, gathered, strict=True) if shapes == weights)
    assert {kind for kind, _ in forward} == {"all-gather"}
    sums = {s for kind, shapes in backward if kind in ("all-reduce", "reduce-scatter") for s in shapes}
    assert set(weights) <= sums  # a CPU sums, then takes its part; a GPU's reduce-scatter does both
    # What is gathered never has the axis of the layers, and no activation is.
    assert not any(s[0] == L or s[:2] == (B, T) for shapes in gathered for s in shapes)
    assert {kind for body in found for kind, _ in body} <= {"all-gather", "all-reduce", "reduce-scatter"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh, kinds", [("fsdp:8", {"all-gather", "all-reduce"}), ("data:8", {"all-reduce"})]
)
def test_several_microbatches_send_no_more_than_one(mesh, kinds):
    (around_loops,) = collectives(mesh, microbatches=2)  # and nothing within
    assert {kind for kind, _ in around_loops} == kinds


@pytest.mark.slow
def test_a_model_too_large_to_be_whole_sums_its_gradients_in_each_microbatch(no_room):
    assert len(collectives("fsdp:8", microbatches=2)) > 1  # in loops' bodies, too


@pytest.mark.slow
def test_tensor_devices_sum_the_residual_stream_twice_per_layer_each_way():
    forward, backward, _ = collectives("tensor:8")
    stream = (B, T, 64)
    assert forward == [("all-reduce", [stream])] * 2
    # A CPU sends a gradient for each layer that reads the stream; compilers for GPUs and TPUs add them first.
    assert backward == [("all-reduce", [stream] * 2), ("all-reduce", [stream] * 3)]


def random_array(like):
    """A random array of this shape and sharding; a scalar, as the step, is 1."""
    values = np.random.default_rng(0).normal(size=like.shape) if like.ndim else np.ones(())
    return jax.device_put(values.astype(like.dtype), like.sharding)


def test_a_checkpoint_moves_to_any_mesh_bit_for_bit(tmp_path):
    options = replace(LLAMA, n_layer=4)  # so that stages divide them
    config = model_config(options, V)
    with jax.set_mesh(make_mesh("stage:2,fsdp:2,tensor:2")):
        state = jax.tree.map(random_array, state_shapes(config, options))  # moments of zero look alike
        save_run(tmp_path, state, Manifest(options, V, None))
    for mesh in ("data:1", "data:2,fsdp:4", "stage:4,tensor:2"):
        with jax.set_mesh(make_mesh(mesh)):
            shapes = state_shapes(config, options)
            restored = Checkpoints(str(tmp_path)).restore(1, shapes)
        assert jax.tree.structure(restored) == jax.tree.structure(state)
        assert_same_bits(restored, state)
        for x, shape in zip(jax.tree.leaves(restored), jax.tree.leaves(shapes), strict=True):
            assert x.sharding.is_equivalent_to(shape.sharding, x.ndim), (mesh, shape)
