"""The count of a program's work, against programs whose FLOPs, bytes, loops and messages are known."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from config.options import Options
from parallel.mesh import make_mesh
from runs.metrics import flops_per_token
from tests.helpers import slowly
from tools.planning.operations import device_groups, operations
from tools.planning.program import Shape, balanced, parse_program
from training.state import model_config, state_shapes
from training.step import compile_step

TINY = Options(
    n_layer=3, n_head=4, n_embd=32, block_size=16, batch_size=4, gradient_accumulation_steps=2, mesh="data:1"
)


@pytest.fixture
def compiled():
    """`compiled(function, *shapes)` is a function's program. That of a user's run has the same operations."""

    def compile(function, *shapes):
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        return parse_program(jax.jit(function).lower(*arguments).compile().as_text())

    return compile


def total(program, number: str) -> float:
    return sum(getattr(x, number) * x.times for x in operations(program))


def test_a_product_has_2mnk_flops_and_each_array_is_read_and_written_once(compiled):
    program = compiled(lambda a, b: a @ b, (64, 128), (128, 256))
    assert total(program, "flops") == 2 * 64 * 128 * 256
    assert total(program, "read") == 4 * (64 * 128 + 128 * 256)
    assert total(program, "written") == 4 * 64 * 256
    elementwise = compiled(lambda a, b: jnp.tanh(a) * b + 1, (100, 10), (100, 10))
    assert [total(elementwise, number) for number in ("flops", "read", "written")] == [0, 8000, 4000]


def test_the_costliest_branch_of_a_conditional_counts(compiled):
    program = compiled(lambda a: lax.cond(a[0, 0] > 0, lambda: a @ a, lambda: a + 1), (64, 64))
    assert total(program, "flops") == 2 * 64**3


def test_a_loop_counts_its_body_times_its_trip_count(compiled):
    def twice_nested(a, b):
        def inner(a, _):
            return jnp.tanh(a @ b), None

        def outer(a, _):
            return lax.scan(inner, a, None, length=5)[0], None

        return lax.scan(outer, a, None, length=7)[0]

    program = compiled(twice_nested, (32, 32), (32, 32))
    assert total(program, "flops") == 7 * 5 * 2 * 32**3


def test_of_an_array_that_is_sliced_or_gathered_from_only_that_part_is_read(compiled):
    def row_after_row(table):
        def add(i, sum):
            return sum + jnp.exp(lax.dynamic_slice_in_dim(table, 8 * i, 8))

        return lax.fori_loop(0, 10, add, jnp.zeros((8, 50)))

    program = compiled(row_after_row, (80, 50))
    rows = 10 * 8 * 50 * 4
    assert rows <= total(program, "read") < 3 * rows  # and the sum, and the counter
    gathered = compiled(lambda table: table[np.arange(5)], (1000, 64))
    assert total(gathered, "read") < 1000 * 64 * 4 / 10


def test_an_array_that_is_updated_in_place_is_written_where_it_is_updated(compiled):
    def fill(row):
        def put(i, table):
            return lax.dynamic_update_slice_in_dim(table, jnp.sin(row * i), i, 0)

        return lax.fori_loop(0, 100, put, jnp.zeros((100, 50)))

    program = compiled(fill, (1, 50))
    assert total(program, "written") < 3 * 100 * 50 * 4  # the zeros, the rows and the counter


@pytest.mark.parametrize(
    "changes", [{"unroll": 1}, *slowly({}, {"mlp": "gelu", "n_kv_head": 2, "position": "rope"})]
)
def test_a_training_step_has_the_flops_of_the_formula(changes):
    options = replace(TINY, **changes)
    with jax.set_mesh(make_mesh("data:1")):
        config = model_config(options, vocab_size=40)
        program = parse_program(compile_step(state_shapes(config, options), options).as_text())
    tokens = 2 * 4 * 16
    assert total(program, "flops") == flops_per_token(config, 16) * tokens


def test_collectives_have_their_bytes_and_their_groups(compiled):
    def gather_all(x):
        return lax.all_gather(x, "fsdp", tiled=True)

    mesh = make_mesh("data:2,fsdp:4")
    function = jax.shard_map(gather_all, mesh=mesh, in_specs=P("fsdp"), out_specs=P(), check_vma=False)
    program = compiled(function, (16, 64))
    (gather,) = [x for x in operations(program) if x.collective]
    assert (gather.collective, gather.message) == ("all-gather", 16 * 64 * 4)
    assert sorted(gather.groups) == [(0, 1, 2, 3), (4, 5, 6, 7)]


# --- what a CPU's programs do not have ----------------------------------------------------------------------

MODULE = """HloModule m, is_scheduled=true

%body (p: (s32[], bf16[64,64])) -> (s32[], bf16[64,64]) {
  %p = (s32[], bf16[64,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = bf16[64,64]{1,0} get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %y = bf16[64,64]{1,0} convolution(%x, %x), dim_labels=bf_io->bf
  ROOT %t = (s32[], bf16[64,64]{1,0}) tuple(%next, %y)
}

%condition (p: (s32[], bf16[64,64])) -> pred[] {
  %p = (s32[], bf16[64,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %limit = s32[] constant(9)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (x: bf16[64,64]) -> (s32[], bf16[64,64]) {
  %x = bf16[64,64]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], bf16[64,64]{1,0}) tuple(%zero, %x)
  ROOT %loop = (s32[], bf16[64,64]{1,0}) while(%start), condition=%condition, body=%body
}
"""


def operation(line: str, *operands: str):
    """Return the operation of an instruction, whose operands are parameters of these types."""
    parameters = "\n".join(f"  %p{i} = {kind} parameter({i})" for i, kind in enumerate(operands))
    program = parse_program(f"HloModule m\n\nENTRY %main () -> f32[] {{\n{parameters}\n  ROOT {line}\n}}\n")
    (found,) = operations(program)
    return found


def test_a_loop_without_a_noted_trip_count_is_read_from_its_condition(capsys):
    assert total(parse_program(MODULE), "flops") == 9 * 2 * 64**3
    assert capsys.readouterr().err == ""
    endless = parse_program(MODULE.replace("direction=LT", "direction=GT"))
    assert total(endless, "flops") == 2 * 64**3
    assert capsys.readouterr().err == "warning: loop loop has no trip count, and counts once\n"


def test_a_product_in_a_tpus_form_counts_each_axis_once():
    of_batches = "window={size=12 stride=11 lhs_dilate=12}, dim_labels=0bf_0io->0bf"
    line = f"%c = bf16[12,100,50]{{2,1,0}} convolution(%p0, %p1), {of_batches}"
    assert operation(line, "bf16[12,100,30]{2,1,0}", "bf16[12,30,50]{2,1,0}").flops == 2 * 12 * 100 * 30 * 50
    summed = "window={size=8}, dim_labels=b0f_0io->b0f"  # over two axes: as a head's output, (B, T, H, D)
    line = f"%c = bf16[100,1,50]{{2,1,0}} convolution(%p0, %p1), {summed}"
    assert operation(line, "bf16[100,8,64]{2,1,0}", "bf16[8,64,50]{2,1,0}").flops == 2 * 100 * 8 * 64 * 50


def test_what_starts_no_kernel_moves_nothing():
    kernel = operation('%a = f32[8]{0} custom-call(%p0), custom_call_target="AllocateBuffer"', "f32[8]{0}")
    assert (kernel.read, kernel.written) == (0, 0)


def test_a_scatter_in_a_fusion_reads_and_writes_its_updates_alone():
    program = parse_program("""HloModule m

%fused (p0: f32[1000], p1: s32[5,1], p2: f32[5]) -> f32[1000] {
  %p0 = f32[1000]{0} parameter(0)
  %p1 = s32[5,1]{1,0} parameter(1)
  %p2 = f32[5]{0} parameter(2)
  ROOT %s = f32[1000]{0} scatter(%p0, %p1, %p2), to_apply=%add
}

ENTRY %main () -> f32[1000] {
  %a = f32[1000]{0} parameter(0)
  %b = s32[5,1]{1,0} parameter(1)
  %c = f32[5]{0} parameter(2)
  ROOT %f = f32[1000]{0} fusion(%a, %b, %c), kind=kLoop, calls=%fused
}
""")
    (kernel,) = operations(program)
    assert (kernel.read, kernel.written) == (5 * 4 + 5 * 4, 2 * 5 * 4)


def test_a_tpu_moves_whole_tiles_and_nothing_for_what_is_on_the_chip():
    assert Shape("bf16", (3, 12, 64), "2,1,0:T(8,128)(2,1)").bytes == 3 * 16 * 128 * 2
    assert Shape("f32", (12, 64), "0,1:T(8,128)").bytes == 128 * 64 * 4
    assert Shape("f32", (12, 64), "1,0:T(8,128)S(1)").bytes == 0
    assert Shape("pred", (5, 3), "1,0").bytes == 15


@pytest.mark.parametrize("mask, pairs", [("CAUSAL", 128 * 129 / 2), ("NO_MASK", 128 * 128)])
@pytest.mark.parametrize("target, products", [("Softmax", 2), ("SoftmaxBackward", 5)])
def test_cudnns_attention_counts_the_pairs_that_the_mask_allows(mask, pairs, target, products):
    config = f'{{"cudnn_fmha_backend_config":{{"mask_type":"{mask}","intermediate_tensor_shape":' + (
        '{"dimensions":["2","4","128","128"]}}}'
    )
    x = "bf16[2,128,4,64]{3,2,1,0}"
    line = f'%a = {x} custom-call(%p0, %p1, %p2), custom_call_target="__cudnn$fmha{target}"'
    kernel = operation(f"{line}, backend_config={config}", x, x, x)
    assert kernel.flops == products * 2 * 2 * 4 * pairs * 64
    assert kernel.bytes == 4 * 2 * 128 * 4 * 64 * 2


@pytest.mark.parametrize(
    "groups",
    [
        "replica_groups={{0,2},{1,3}}",
        "replica_groups=[2,2]<=[2,2]T(1,0)",
        "replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}",
        "replica_groups=mesh['axis_0'=2,'axis_1'=2], device_ids=([2,2]T(1,0)) {'axis_1'}",
    ],
)
def test_device_groups_are_read_in_all_their_forms(groups):
    kernel = operation(f"%r = f32[8]{{0}} all-reduce(%p0), {groups}, to_apply=%add", "f32[8]{0}")
    assert sorted(kernel.groups) == [(0, 2), (1, 3)]
    assert kernel.message == 32
    assert device_groups("(%p0), source_target_pairs={{0,1},{1,0}}") == ((0, 1), (1, 0))


def test_a_bracket_ends_where_it_is_closed():
    assert balanced("f(a[b]{c})(d)", 1) == "(a[b]{c})"


def test_an_instruction_may_take_several_lines():
    x = "bf16[2,4,128,64]{3,2,1,0}"
    line = f'%splash_mha_dq.1 = {x} custom-call(%p0, %p1, %p2), custom_call_target="tpu_custom_call", '
    metadata = 'frontend_attributes={kernel_metadata={\n"xprof":"{}"\n}}, metadata={stack_frame_id=3}'
    kernel = operation(line + metadata, "s8[1,2,2]{2,1,0}", x, x)
    assert "stack_frame_id=3" in kernel.instruction.text
    assert kernel.flops == 3 * 2 * 2 * 4 * (128 * 129 / 2) * 64  # q k^T, dy v^T and ds k, causal
