"""A plan's seconds by the device's peaks, its classes of work, what is sent, and lack of memory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from config.options import Options
from tools.planning.cost import Cost, estimate
from tools.planning.fit import GIB, changes_that_save, memory_of, needed_bytes
from tools.planning.operations import KINDS
from tools.planning.program import parse_program
from tools.planning.target import parse_target

ONE = dict(stage=1, data=1, fsdp=1, tensor=1)


def cost_of(line: str, *operands: str, on="H100", mesh=ONE, op_name="") -> Cost:
    parameters = "".join(f"  %p{i} = {kind} parameter({i})\n" for i, kind in enumerate(operands))
    line += f', metadata={{op_name="{op_name}"}}'
    text = f"HloModule m\n\nENTRY %main () -> f32[] {{\n{parameters}  ROOT {line}\n}}\n"
    return estimate(parse_program(text), parse_target(on), mesh)


def product(size: int, dtype="bf16") -> tuple[str, str, str]:
    x = f"{dtype}[{size},{size}]{{1,0}}"
    return f"%d = {x} dot(%p0, %p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}", x, x


def test_a_large_product_takes_its_flops_at_80_percent_of_the_peak():
    cost = cost_of(*product(8192))
    assert cost.seconds == pytest.approx(2 * 8192**3 / (0.8 * 989e12) + 1.5e-6)
    assert cost.by_class().bound.item() == "products"


def test_a_thin_product_takes_its_bytes_at_90_percent_of_the_bandwidth():
    line = "%d = bf16[4,4096]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    cost = cost_of(line, "bf16[4,4096]{1,0}", "bf16[4096,4096]{1,0}")
    moved = 2 * (4 * 4096 + 4096**2 + 4 * 4096)
    assert cost.seconds == pytest.approx(moved / (0.9 * 3352e9) + 1.5e-6)
    assert cost.by_class().bound.item() == "memory"


def test_float32_products_take_twice_as_long_on_a_gpu():
    gpu = [cost_of(*product(16384, dtype)).seconds - 1.5e-6 for dtype in ("bf16", "f32")]
    tpu = [cost_of(*product(16384, dtype), on="v5p").seconds for dtype in ("bf16", "f32")]
    assert gpu[1] == pytest.approx(2 * gpu[0])
    assert tpu[1] == pytest.approx(tpu[0])


@pytest.mark.parametrize(
    "op_name, work",
    [
        ("jit(step)/jvp(MLP)/dot_general", "matrix products"),
        ("jit(step)/while/body/transpose(jvp(attention))/dot_general", "attention"),
        ("jit(step)/loss/while/body/dot_general", "loss"),
        ("jit(step)/optimizer/muon/dot_general", "optimizer"),
        ("jit(step)/my_attention_span/dot_general", "matrix products"),
    ],
)
def test_work_has_the_class_of_its_innermost_scope(op_name, work):
    classes = cost_of(*product(64), op_name=op_name).by_class()
    assert classes.flops.to_dict() == {work: 2 * 64**3} and work in KINDS


STARTED = "((f32[1000000]{0}), f32[1000000]{0}) all-reduce-start"  # as XLA writes it with JAX 0.12
ALL_REDUCE = "%r = f32[1000000]{0} all-reduce(%p0), to_apply=%add, replica_groups="


def test_a_sum_that_other_work_hides_sends_what_it_takes_alone():
    for line in (ALL_REDUCE, ALL_REDUCE.replace("f32[1000000]{0} all-reduce", STARTED)):
        groups = "{{0,1,2,3},{4,5,6,7}}"
        cost = cost_of(line + groups, "f32[1000000]{0}", on="H100:8", mesh=ONE | dict(data=2, fsdp=4))
        assert cost.by_class().sent.to_dict() == {"network: fsdp": 1.5 * 4e6}


@pytest.mark.parametrize(
    "on, groups, axis, seconds",
    [  # 4 MB; a ring of n sends 2 (n - 1) / n of them
        ("H100:8", "{{0,1,2,3},{4,5,6,7}}", "fsdp", 1.5 * 4e6 / (0.8 * 450e9) + 1.5e-6),
        ("H100:8", "{{0,4},{1,5},{2,6},{3,7}}", "data", 4e6 / (0.8 * 450e9) + 1.5e-6),
        ("H100:8", "{{0,1,2,3,4,5,6,7}}", "data,fsdp", 1.75 * 4e6 / (0.8 * 450e9) + 1.5e-6),
        ("v5e:2x4", "{{0,1,2,3},{4,5,6,7}}", "fsdp", 1.5 * 4e6 / (0.8 * 100e9)),
    ],
)
def test_communication_belongs_to_the_axis_along_which_its_devices_differ(on, groups, axis, seconds):
    cost = cost_of(ALL_REDUCE + groups, "f32[1000000]{0}", on=on, mesh=ONE | dict(data=2, fsdp=4))
    assert list(cost.by_class().index) == [f"network: {axis}"]
    assert cost.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("groups", ["{{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}", "{}"])
def test_between_machines_each_gpu_sends_its_share_through_its_own_card(groups):
    cost = cost_of(ALL_REDUCE + groups, "f32[1000000]{0}", on="H100:16", mesh=ONE | dict(fsdp=16))
    share = 2 * 4e6 / 2 / 8  # the 8 cards of a machine send half of the array, twice
    assert cost.seconds == pytest.approx(
        max(share / (0.8 * 50e9), 2 * 15 / 16 * 4e6 / (0.8 * 450e9)) + 1.5e-6
    )


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message, gib",
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.20G of 15.75G hbm.", 18.2),
        ("Ran out of memory on HBM: the memory required for temporaries (4.5T) exceeds available", 4608),
        ("INVALID_ARGUMENT: no such thing", None),
    ],
)
def test_a_compiler_out_of_memory_says_how_much_it_would_have_needed(message, gib):
    assert needed_bytes(message) == (gib and int(gib * GIB))


def test_what_saves_memory_trains_on_the_same_tokens_per_step():
    options = Options(batch_size=4, gradient_accumulation_steps=3)
    half = dict(batch_size=2, gradient_accumulation_steps=6)
    quarter = dict(batch_size=1, gradient_accumulation_steps=12)
    assert changes_that_save(options, 1) == [half, quarter, quarter | dict(remat="block")]
    assert changes_that_save(replace(options, batch_size=31, remat="block"), 1) == []
    first, *others = changes_that_save(replace(options, batch_size=32), 8)
    assert first == dict(mesh="fsdp:8")
    assert [x["batch_size"] for x in others] == [16, 8, 8]
    assert all(changes["mesh"] == "fsdp:8" for changes in others)
    # A pipeline stays one, and one row is enough for it; what is split already is not planned again.
    assert changes_that_save(replace(options, mesh="stage:8"), 8)[:2] == [half, quarter]
    assert changes_that_save(replace(options, mesh="fsdp:2"), 2)[0] == half


def test_memory_is_of_arguments_results_and_temporaries_and_a_donated_argument_counts_once():
    def sorted_twice(x):
        return jnp.sort(jnp.sort(x)[::-1] * x)

    x = jnp.ones(1000)  # 4,000 bytes
    kept, donated = (
        memory_of(jax.jit(sorted_twice, donate_argnums=which).lower(x).compile()) for which in ((), 0)
    )
    assert kept["temporaries"] > 0 and kept["peak"] - kept["temporaries"] >= 8000
    assert donated["peak"] - donated["temporaries"] == kept["peak"] - kept["temporaries"] - 4000
