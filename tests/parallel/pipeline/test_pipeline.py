"""A pipeline computes what one device does, whatever the schedule, the mesh and the number of processes."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

import train
from config.command_line import UserError
from config.options import Options
from evaluation.split import compile_loss
from parallel.mesh import make_mesh
from parallel.pipeline.loop import make_pipeline
from parallel.sharding import batch_sharding
from runs.checkpoint import Checkpoints, arrays_by_name
from runs.manifest import Manifest
from training.state import create_state, model_config, state_shapes
from training.step import compile_step, mean_gradients

V, T, L, A, B, EOT = 48, 8, 8, 4, 4, 7
GPT2 = replace(
    Options(),
    **dict(n_layer=L, n_head=4, n_embd=16, n_hidden=32, block_size=T, batch_size=B),
    **dict(gradient_accumulation_steps=A, unroll=1, mlp="gelu", bias=True),
)
LLAMA = replace(
    GPT2, position="rope", norm="rmsnorm", mlp="swiglu", bias=False, n_kv_head=2, tie_embeddings=False
)
VARIANTS = {
    "gpt2, dropout": replace(GPT2, dropout=0.2),
    "llama": LLAMA,
    "llama, documents": replace(LLAMA, document_mask=True),
    "one microbatch, dropout": replace(GPT2, gradient_accumulation_steps=1, dropout=0.2),
    "bf16": replace(GPT2, dtype="bfloat16"),
    "remat, unrolled": replace(GPT2, remat="block", unroll=3),
    "lora": replace(LLAMA, lora_rank=2),
}
GPIPE, INTERLEAVED = dict(pipeline_schedule="gpipe"), dict(pipeline_schedule="interleaved", virtual_stages=2)
PIPELINES = [  # every schedule on several meshes, and every variant on one
    ("gpt2, dropout", "stage:4", GPIPE),
    pytest.param("gpt2, dropout", "stage:2", {}, marks=pytest.mark.slow),
    pytest.param("gpt2, dropout", "stage:8", {}, marks=pytest.mark.slow),
    ("gpt2, dropout", "stage:4", INTERLEAVED),
    ("gpt2, dropout", "stage:2,data:2,fsdp:2", {}),
    ("gpt2, dropout", "stage:2,fsdp:2,tensor:2", INTERLEAVED),
    ("llama", "stage:2,fsdp:2,tensor:2", {}),
    ("llama", "stage:2,tensor:2,data:2", dict(pipeline_schedule="gpipe", virtual_stages=4)),
    ("llama", "stage:2,fsdp:2,tensor:2", INTERLEAVED | dict(pipeline_branches="where")),
    ("llama, documents", "stage:4,fsdp:2", {}),
    ("one microbatch, dropout", "stage:4", {}),
    ("bf16", "stage:4", {}),
    pytest.param("remat, unrolled", "stage:2", {}, marks=pytest.mark.slow),
    ("lora", "stage:2,fsdp:2", INTERLEAVED),
]

# Float32 rounds each operation by up to u = 2^-24, and roundings add up like a random walk. A forward and a
# backward pass of eight layers are about 300 operations in a row, the products among them sums of up to 128
# terms, which a mesh adds up in another order: sqrt(300 * 128) u.
FLOAT32_ROUNDING = 1.2e-5


def batch(options):
    shape = (2, options.gradient_accumulation_steps, B, T)
    return np.random.default_rng(0).integers(V, size=shape, dtype=np.int32)


def gradients(options, mesh):
    """Loss and gradients by name, of a new model on the mesh."""

    def compute(model, x, y):
        key = jax.random.key(7) if options.dropout else None
        return mean_gradients(model, x, y, key, make_pipeline(options))

    with jax.set_mesh(make_mesh(mesh)):
        model = create_state(model_config(options, V, EOT), options).model
        if options.lora_rank:  # as it is after some steps: before them, half of the gradients are zero
            model = jax.tree.map(lambda x: x + 0.01 * np.cos(np.arange(x.size)).reshape(x.shape), model)
        x, y = jax.device_put(batch(options), batch_sharding(4))
        loss, gradients = jax.jit(compute)(model, x, y)
        return float(loss), {name: np.asarray(x) for name, x in arrays_by_name(gradients).items()}


@cache
def on_one_device(variant):
    return gradients(VARIANTS[variant], "data:1")


@pytest.mark.parametrize("variant, mesh, changes", PIPELINES)
def test_loss_and_gradients_are_those_of_one_device(variant, mesh, changes):
    expected_loss, expected = on_one_device(variant)
    loss, found = gradients(replace(VARIANTS[variant], **changes), mesh)
    assert loss == pytest.approx(expected_loss, rel=FLOAT32_ROUNDING)
    assert found.keys() == expected.keys() and all(np.linalg.norm(x) > 0 for x in expected.values())
    for name, array in found.items():
        error = np.linalg.norm(array - expected[name]) / np.linalg.norm(expected[name])
        assert error < FLOAT32_ROUNDING, name


@pytest.mark.parametrize("changes", [{}, INTERLEAVED, dict(pipeline_branches="where")])
def test_evaluation_has_the_loss_of_one_device_and_no_rank_gathers_the_layers(changes, optimized):
    options = replace(LLAMA, **changes, batch_size=B)
    x, y = batch(options)[:, 0]

    def evaluate(mesh):
        with jax.set_mesh(make_mesh(mesh)):
            model = create_state(model_config(options, V), options).model
            loss = compile_loss(model, options)
            return float(loss(model, x, y)), loss.as_text()

    expected, _ = evaluate("data:1")
    found, program = evaluate("stage:4,fsdp:2")
    assert found == pytest.approx(expected, rel=FLOAT32_ROUNDING)
    assert "all-gather" in program and not re.search(rf"\w\[{L},[\d,]+\]\S* all-gather", program)


def test_memory_of_1f1b_does_not_grow_with_microbatches_and_that_of_gpipe_does(optimized):
    def planned(schedule, microbatches):
        options = replace(GPT2, n_layer=4, block_size=64, n_embd=64, pipeline_schedule=schedule)
        options = replace(options, gradient_accumulation_steps=microbatches)
        with jax.set_mesh(make_mesh("stage:4")):
            shapes = state_shapes(model_config(options, V), options)
            return compile_step(shapes, options).memory_analysis().temp_size_in_bytes

    stage_input = 4 * B * 64 * 64  # bytes
    long = planned("1f1b", 32)
    # 24 more ticks, of 9 integers of 4 bytes, make a rank's table that much longer; a page for all else.
    assert long - planned("1f1b", 8) < 24 * 9 * 4 + 4096
    assert planned("gpipe", 32) - long > (32 - 5 - 1) * stage_input  # it keeps 32 inputs, and 1f1b 5


# --- whole runs ---------------------------------------------------------------------------------------------

RUN = dict(n_layer=4, gradient_accumulation_steps=4, unroll=1, dropout=0.2)
PIPELINED = RUN | dict(mesh="stage:2,fsdp:2", pipeline_schedule="interleaved", virtual_stages=2)


def losses(folder):
    """Every loss of the records, of steps and evaluations, by iteration and name."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {(r["iter"], name): r[name] for r in records for name in ("loss", "val/loss") if name in r}


@pytest.fixture(scope="module")
def one(tiny, tmp_path_factory):
    """The run of one device: its folder."""
    out = tmp_path_factory.mktemp("pipeline") / "one"
    train.main(tiny(out, **RUN))
    return out


def assert_same_curve(ours, theirs):
    assert theirs.keys() == {(i, "loss") for i in range(10)} | {(i, "val/loss") for i in (0, 5, 10)}
    for at, loss in theirs.items():
        # Adam divides by a gradient's size, so that rounding shows in the weights where a gradient is nearly
        # zero, by up to lr per step; ten steps of it move the loss far less than 1e-3.
        assert ours[at] == pytest.approx(loss, rel=1e-3), at


def test_a_run_goes_on_pipelined_where_it_stopped_unpipelined_and_on_other_ranks(one, tiny, tmp_path):
    out = tmp_path / "moved"
    stages = dict(mesh="stage:4", pipeline_schedule="1f1b", virtual_stages=1)
    train.main(tiny(out, **RUN, max_iters=3))
    train.main(tiny(out, **PIPELINED, max_iters=6, init_from="resume"))
    train.main(tiny(out, **RUN | stages, max_iters=8, init_from="resume"))
    train.main(tiny(out, **RUN | dict(mesh="data:2"), init_from="resume"))
    assert_same_curve(losses(out), losses(one))


def test_a_pipelined_checkpoint_is_the_same_to_the_bit_wherever_it_is_read(tmp_path):
    options = replace(GPT2, **INTERLEAVED)
    config = model_config(options, V)
    with jax.set_mesh(make_mesh("stage:4,fsdp:2")):
        state = create_state(config, options)
        state, _ = compile_step(state, options)(state, *batch(options))
        checkpoints = Checkpoints(str(tmp_path))
        checkpoints.save(state, Manifest(options, V, None, None))
        checkpoints.wait()
    for mesh in ("data:1", "stage:2", "stage:8", "fsdp:2,tensor:2"):
        with jax.set_mesh(make_mesh(mesh)):
            restored = arrays_by_name(Checkpoints(str(tmp_path)).restore(1, state_shapes(config, options)))
        for name, x in arrays_by_name(state).items():
            assert np.asarray(x).tobytes() == np.asarray(restored[name]).tobytes(), (mesh, name)


def test_a_rank_has_its_layers_alone():
    with jax.set_mesh(make_mesh("stage:4")):
        state = create_state(model_config(GPT2, V), GPT2)
    for name, x in arrays_by_name(state).items():
        layers = L // 4 if "blocks." in name else None
        assert {s.data.shape[0] for s in x.addressable_shards if layers} <= {layers}, name


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_with_stages_of_their_own_train_as_one(processes, one, tiny, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mesh = {2: "stage:2,fsdp:2", 4: "stage:4"}[processes]
    devices = {2: 2, 4: 1}[processes]
    run = tiny(tmp_path / "many", **RUN | dict(mesh=mesh, pipeline_schedule="gpipe"))
    started = [
        subprocess.Popen(
            [sys.executable, "train.py", *run, f"--coordinator=127.0.0.1:{port}"]
            + [f"--num_processes={processes}", f"--process_id={i}"],
            cwd=Path(train.__file__).parent,
            env=os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in started]  # many times what it takes
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * processes, outputs
    assert_same_curve(losses(tmp_path / "many"), losses(one))
    first = [json.loads((out / "metrics.jsonl").open().readlines()[1]) for out in (one, tmp_path / "many")]
    for name in ("loss", "grad_norm"):  # of step 0, before Adam
        assert first[0][name] == pytest.approx(first[1][name], rel=FLOAT32_ROUNDING)


@pytest.mark.parametrize(
    "changes, says",
    [
        (
            dict(n_layer=6),
            "n_layer=6 must be a multiple of the 4 stages that mesh=stage:4 and virtual_stages=1",
        ),
        (dict(INTERLEAVED, n_layer=4), "n_layer=4 must be a multiple of the 8 stages"),
        (dict(INTERLEAVED, gradient_accumulation_steps=6), "6 microbatches must be a multiple of 4 stages"),
        (dict(virtual_stages=2), "virtual_stages=2, but 1f1b has one chunk per rank: use interleaved"),
    ],
)
def test_a_pipeline_that_cannot_be_is_one_line(changes, says, tiny, tmp_path):
    options = dict(mesh="stage:4", n_layer=8, gradient_accumulation_steps=4) | changes
    with pytest.raises(UserError, match=says) as error:
        train.main(tiny(tmp_path / "out", **options))
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()
