"""The FLOPs of steps and the messages of programs, beside those that are known."""

from collections import Counter
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
from tests.helpers import MODERN, slowly
from tools.planning.fit import traced_flops
from tools.planning.program import Program, product_flops
from training.state import model_config, state_shapes

ONE = dict(stage=1, data=1, fsdp=1, tensor=1)
TINY = Options(
    n_layer=3, n_head=4, n_embd=32, block_size=16, batch_size=8, gradient_accumulation_steps=2, mesh="data:1"
)


# --- FLOPs --------------------------------------------------------------------------------------------------


def test_a_product_has_2mnk_flops_a_loop_those_of_all_its_runs_and_a_conditional_the_costliest_branch_s():
    def function(a, b):
        def inner(a, _):
            return jnp.tanh(a @ b), None

        def outer(a, _):
            return lax.scan(inner, a, length=5)[0], None

        a, _ = lax.scan(outer, a, length=7)
        return lax.cond(a[0, 0] > 0, lambda: a @ b @ b, lambda: a @ b)

    jaxpr = jax.make_jaxpr(jax.jit(function))(np.ones((16, 32)), np.ones((32, 32)))
    assert product_flops(jaxpr) == (7 * 5 + 2) * 2 * 16 * 32 * 32


def flops(**changes) -> tuple[float, float]:
    """Return the FLOPs of a step as it is traced, and by the formula."""
    options = replace(TINY, **changes)
    with jax.set_mesh(make_mesh(options.mesh)):
        config = model_config(options, vocab_size=40)
        formula = options.tokens_per_step * flops_per_token(config, 16)
        return traced_flops(state_shapes(config, options), options), formula


@pytest.mark.parametrize(
    "mesh, shape", [("data:1", MODERN), ("data:8", dict(n_kv_head=2)), *slowly(("fsdp:2,tensor:4", {}))]
)
def test_a_step_has_the_flops_of_the_formula_and_more_if_it_computes_again(mesh, shape):
    """On data:8 each device sums its own rows first, in a program of its own."""
    traced, formula = flops(mesh=mesh, **shape)
    assert traced == formula
    again, formula = flops(mesh=mesh, **shape, remat="block")
    assert 1.2 * formula < again < 4 / 3 * formula


def test_lora_has_no_gradients_of_frozen_weights():
    traced, formula = flops(lora_rank=2)
    assert 2 / 3 * formula < traced < 0.85 * formula


# --- messages -----------------------------------------------------------------------------------------------


def sent(lines: str, mesh=ONE | dict(data=2, fsdp=4), more: str = "") -> dict[tuple[str, str], float]:
    """Return the bytes that a program of these lines sends, by axes and kind."""
    body = "".join(f"  {line}\n" for line in lines.splitlines())
    text = f"HloModule m\n{more}\nENTRY %main (x: f32[8]) -> f32[] {{\n{body}}}\n"
    found = Counter()
    for x in Program(text, mesh).messages():
        found[x.axes, x.kind] += x.times * x.sent
    return dict(found)


def test_a_compiled_collective_has_its_bytes_and_its_axis_times_the_runs_of_its_loop():
    def gather_all(x):
        def add(total, _):
            return total + lax.all_gather(x * total[0, 0], "fsdp", tiled=True), None

        return lax.scan(add, jnp.ones((16, 64)), length=3)[0]

    mesh = make_mesh("data:2,fsdp:4")
    function = jax.shard_map(gather_all, mesh=mesh, in_specs=P("fsdp"), out_specs=P(), check_vma=False)
    text = jax.jit(function).lower(jax.ShapeDtypeStruct((16, 64), jnp.float32)).compile().as_text()
    (message,) = Program(text or "", dict(mesh.shape)).messages()
    assert message[:4] == ("all-gather", "fsdp", 3, 3 / 4 * 16 * 64 * 4)


@pytest.mark.parametrize(
    "instruction, result, size",
    [  # an array of 4 MB; a ring of n sends (n - 1) / n of it, and for a sum twice that
        ("all-reduce-start", "f32[1000000]{0}", 1.5 * 4e6),
        ("all-reduce-start", "((f32[1000000]{0}), f32[1000000]{0})", 1.5 * 4e6),  # with JAX 0.12
        ("all-gather", "bf16[2,1000000]{1,0:T(8,128)(2,1)S(1)}", 0.75 * 4e6),
        ("all-gather-start", "(f32[250000]{0}, f32[1000000]{0})", 0.75 * 4e6),
        ("reduce-scatter", "f32[250000]{0}", 0.75 * 4e6),
        ("all-to-all", "f32[1000000]{0}", 0.75 * 4e6),
        ("collective-permute", "s8[4000000]{0}", 4e6),
    ],
)
def test_a_message_sends_what_a_ring_needs(instruction, result, size):
    groups = "replica_groups={{0,1,2,3},{4,5,6,7}}"
    if instruction == "collective-permute":
        groups = "source_target_pairs={{0,1},{1,0}}"
    line = f"ROOT %r = {result} {instruction}(%p0), channel_id=1, {groups}, to_apply=%add"
    assert sent(line) == {("fsdp", instruction.removesuffix("-start")): size}


@pytest.mark.parametrize(
    "groups, axes, n",
    [  # in all forms that XLA writes
        ("{{0,4},{1,5},{2,6},{3,7}}", "data", 2),
        ("{}", "data,fsdp", 8),
        ("[2,4]<=[8]", "fsdp", 4),
        ("[4,2]<=[2,4]T(1,0)", "data", 2),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", "data", 2),
        ("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_0'}", "fsdp", 4),
    ],
)
def test_a_message_goes_along_the_axes_by_which_its_devices_differ(groups, axes, n):
    line = f"%r = f32[1000]{{0}} all-reduce(%p0), replica_groups={groups}, to_apply=%add"
    assert sent(line) == {(axes, "all-reduce"): 2 * (n - 1) / n * 4000}


LOOP = """
%body (p: s32[]) -> s32[] {
  %r = f32[1000]{0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
}

%condition (p: s32[]) -> pred[] {
  %limit = s32[]{:T(128)} constant(9)
  ROOT %less = pred[] compare(%p, %limit), direction=LT
}
"""


def test_a_tpu_s_loop_runs_as_often_as_its_condition_says_and_a_gpu_s_as_xla_notes(capsys):
    line = "%w = s32[] while(%start), condition=%condition, body=%body"
    assert sent(line, more=LOOP) == {("fsdp", "all-reduce"): 9 * 6000}
    noted = line + ', backend_config={"known_trip_count":{"n":"5"}}'
    assert sent(noted, more=LOOP) == {("fsdp", "all-reduce"): 5 * 6000}
    assert capsys.readouterr().err == ""
    assert sent(line, more=LOOP.replace("constant(9)", "parameter(0)")) == {("fsdp", "all-reduce"): 6000}
    assert capsys.readouterr().err == "warning: the loop of condition has no trip count, and counts once\n"


def test_what_is_in_several_fusions_of_a_tpu_is_sent_once_and_a_slice_of_a_sum_is_scattered():
    reduced = "f32[1000]{0} all-reduce(%p), channel_id=7, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add"
    fused = "".join(
        f"%f{i} (p: f32[1000]) -> f32[250] {{\n  %r = {reduced}\n"
        "  ROOT %s = f32[250]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={250}\n}\n"
        for i in range(2)
    )
    lines = "\n".join(f"%k{i} = f32[250]{{0}} fusion(%p0), kind=kCustom, calls=%f{i}" for i in range(2))
    assert sent(lines, more=fused) == {("fsdp", "all-reduce"): 3000}  # half of a sum


def test_of_a_conditional_s_branches_the_one_that_sends_most_counts():
    def branch(name, size):
        reduced = f"f32[{size}]{{0}} all-reduce(%p), replica_groups={{{{0,1,2,3}}}}, to_apply=%add"
        return f"%{name} (p: f32[8]) -> f32[8] {{\n  ROOT %r = {reduced}\n}}\n"

    line = "%c = f32[8]{0} conditional(%i, %p0, %p0), branch_computations={%few, %many}"
    assert sent(line, more=branch("few", 10) + branch("many", 1000)) == {("fsdp", "all-reduce"): 6000}
