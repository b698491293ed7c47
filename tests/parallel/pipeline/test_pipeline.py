"""A pipeline computes what one device does, whatever the schedule, the mesh and the number of processes."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest

import train
from config.options import Options
from parallel.mesh import make_mesh
from runs.checkpoint import arrays_by_name
from tests.helpers import (
    DEADLINE,
    MODERN,
    assert_as_on_one_device,
    assert_same_curve,
    free_port,
    losses,
    moved,
    on_one_device,
    random_batch,
    records,
    refusal,
    slowly,
    start_python,
)
from training.evaluation import compile_loss
from training.state import create_state, model_config, state_shapes
from training.step import compile_step

V, T, L, A, B, EOT = 48, 8, 8, 4, 4, 7
GPT2 = Options(
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
    "bf16, remat, unrolled": replace(GPT2, dtype="bfloat16", remat="block", unroll=3),
    "lora": replace(LLAMA, lora_rank=2),
    "many tokens, modern, µP, dropout": replace(  # of a microbatch, more than the vocabulary has
        GPT2, **MODERN | dict(bias=False), mup_base_width=4, n_layer=4, batch_size=16, dropout=0.2
    ),
}
GPIPE, INTERLEAVED = dict(pipeline_schedule="gpipe"), dict(pipeline_schedule="interleaved", virtual_stages=2)
PIPELINES = [  # every schedule on several meshes, and every variant on one; in the gate, all axes
    ("many tokens, modern, µP, dropout", "stage:2,fsdp:2,tensor:2", {}),
    *slowly(
        ("gpt2, dropout", "stage:4", INTERLEAVED),
        ("gpt2, dropout", "stage:2", GPIPE),
        ("gpt2, dropout", "stage:8", {}),
        ("gpt2, dropout", "stage:2,data:2,fsdp:2", {}),
        ("llama", "stage:2,tensor:2,data:2", GPIPE | dict(virtual_stages=4)),
        ("llama, documents", "stage:4,fsdp:2", {}),
        ("one microbatch, dropout", "stage:4", {}),
        ("bf16, remat, unrolled", "stage:2", {}),
        ("lora", "stage:2,fsdp:2", INTERLEAVED),
    ),
]

# As helpers.FLOAT32_ROUNDING, but the passes of eight layers are about 300 operations in a row, the products
# among them sums of up to 128 terms: sqrt(300 * 128) u.
ROUNDING = 1.2e-5


def new_model(options):
    model = create_state(model_config(options, V, EOT), options).model
    # As it is after some steps: before them, some of the gradients are zero.
    return moved(model) if options.lora_rank else model


@pytest.mark.parametrize("variant, mesh, changes", PIPELINES)
def test_loss_and_gradients_are_those_of_one_device(variant, mesh, changes):
    assert_as_on_one_device(new_model, VARIANTS[variant], mesh, ROUNDING, **changes)
    assert all(np.linalg.norm(x) > 0 for x in on_one_device(new_model, VARIANTS[variant])[1].values())


@pytest.mark.slow
def test_evaluation_has_the_loss_of_one_device_and_no_rank_gathers_the_layers():
    options = replace(LLAMA, **INTERLEAVED, batch_size=B)
    x, y = random_batch(options, V)[:, 0]

    def evaluate(mesh):
        with jax.set_mesh(make_mesh(mesh)):
            model = create_state(model_config(options, V), options).model
            loss = compile_loss(model, options)
            return float(loss(model, x, y)), loss.as_text()

    expected, _ = evaluate("data:1")
    found, program = evaluate("stage:4,fsdp:2")
    assert found == pytest.approx(expected, rel=ROUNDING)
    assert "all-gather" in program and not re.search(rf"\w\[{L},[\d,]+\]\S* all-gather", program)


@pytest.mark.slow
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


RUN = dict(n_layer=4, gradient_accumulation_steps=4, unroll=1, dropout=0.2)
PIPELINED = RUN | dict(mesh="stage:2,fsdp:2", pipeline_schedule="interleaved", virtual_stages=2)


@pytest.fixture(scope="module")
def one(tiny, tmp_path_factory):
    """The folder of the run of one device."""
    out = tmp_path_factory.mktemp("pipeline") / "one"
    train.main(tiny(out, **RUN))
    return out


@pytest.mark.slow
def test_a_run_goes_on_pipelined_where_it_stopped_unpipelined_and_on_other_ranks(one, tiny, tmp_path):
    out = tmp_path / "moved"
    stages = dict(mesh="stage:4", pipeline_schedule="1f1b", virtual_stages=1)
    train.main(tiny(out, **RUN, max_iters=3))
    train.main(tiny(out, **PIPELINED, max_iters=6, init_from="resume"))
    train.main(tiny(out, **RUN | stages, max_iters=8, init_from="resume"))
    train.main(tiny(out, **RUN | dict(mesh="data:2"), init_from="resume"))
    found, theirs = losses(out), losses(one)
    assert {i for i, _ in found.keys() - theirs.keys()} == {3, 6, 8}  # evaluated where each part ended, too
    assert_same_curve({key: found[key] for key in theirs}, theirs)


def test_a_rank_has_its_layers_alone():
    with jax.set_mesh(make_mesh("stage:4")):
        blocks = state_shapes(model_config(GPT2, V), GPT2).model.blocks
    for name, x in arrays_by_name(blocks).items():
        assert x.sharding.shard_shape(x.shape)[0] == L // 4, name


@pytest.mark.slow
def test_processes_with_stages_of_their_own_train_as_one(one, tiny, tmp_path):
    run = tiny(tmp_path / "many", **RUN | dict(mesh="stage:2,fsdp:2", pipeline_schedule="gpipe"))
    run += [f"--coordinator=127.0.0.1:{free_port()}", "--num_processes=2"]
    started = [start_python("train.py", *run, f"--process_id={i}", JAX_NUM_CPU_DEVICES=2) for i in range(2)]
    outputs = [process.communicate(timeout=2 * DEADLINE) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    assert_same_curve(losses(tmp_path / "many"), losses(one))
    first = [records(out)[1] for out in (one, tmp_path / "many")]
    for name in ("loss", "grad_norm"):  # of step 0, before Adam
        assert first[0][name] == pytest.approx(first[1][name], rel=ROUNDING)


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(n_layer=6), "n_layer=6 must be a multiple of the 4 stages that mesh=stage:4"),
        (dict(INTERLEAVED, gradient_accumulation_steps=6), "6 microbatches must be a multiple of 4 stages"),
        (dict(virtual_stages=2), "virtual_stages=2, but 1f1b has one chunk per rank: use interleaved"),
    ],
)
def test_a_pipeline_that_cannot_be_is_one_line(changes, says, tiny, tmp_path):
    options = dict(mesh="stage:4", n_layer=8, gradient_accumulation_steps=4) | changes
    assert says in refusal(train.main, tiny(tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()
