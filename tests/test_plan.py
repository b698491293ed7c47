"""plan.py: bad input is one line; with the compilers installed, a step is planned (-m accelerator)."""

import re
from dataclasses import replace

import pytest
from jax.sharding import AbstractMesh

import plan
from common.command_line import take_options
from config.options import Options, parse_options
from data.dataset import load_meta
from parallel.mesh import check_fit, parse
from runs.checkpoint import arrays_by_name
from runs.metrics import count_parameters, flops_per_token
from tests.helpers import flags, refusal, run_python
from tools.planning import fit
from tools.planning.fit import GIB, Memory, Planned
from tools.planning.program import Message
from tools.planning.published import RUNS
from tools.planning.target import parse_target, prepare_to_compile
from training.compute import choose_how
from training.state import model_config, state_shapes

TINY = dict(
    **dict(n_layer=2, n_head=2, n_embd=128, block_size=128),
    **dict(batch_size=8, gradient_accumulation_steps=2, max_iters=100),
)
FLAGS = flags(TINY, vocab_size=512)


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], "--on is missing: the device to plan for, as in --on=H100; see --help"),
        (["--on=abacus"], "--on=abacus: unknown device 'abacus'; known are RTX4090, L4, A100-40GB, "),
        (["--on=H100:12"], "--on=H100:12: unknown size '12'; H100 is planned by 1, 2, 3, "),
        (["--on=v5e:3x3"], "--on=v5e:3x3: unknown size '3x3'; v5e is planned by 1x1, 2x2, 2x4, 4x4, 4x8, "),
        (["--on=H100:8", "--mesh=fsdp:4"], "mesh=fsdp:4 has 4 devices, and --on=H100:8 8: use all"),
        (["--on=H100:2", "--mesh=fsdp:4"], "mesh=fsdp:4 needs 4 devices, of 2: change its axes"),
        (["--on=H100", "--show_sharding"], "--on, beside --show_sharding: it is of this machine's devices"),
    ],
)
def test_bad_input_is_refused_in_one_line(words, expected, monkeypatch):
    monkeypatch.setattr(plan, "prepare_to_compile", lambda: None)  # which is for a program of its own
    assert refusal(plan.main, [*FLAGS, *words]).startswith(expected)


def test_the_examples_of_its_help_can_be_planned():
    examples = re.findall(r"python plan.py (config.*?)(?:  |$)", plan.__doc__, re.MULTILINE)
    for example in examples:
        own, words = take_options(example.split(), plan.PlanOptions)
        options = parse_options(words)
        sizes = parse(options.mesh, parse_target(own["on"]).count)
        mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
        check_fit(mesh, model_config(options, 50304), options.batch_size, options.gradient_accumulation_steps)
    assert len(examples) == 3


def test_a_target_is_a_device_and_how_many():
    found = [parse_target(text) for text in ("h100", "H100:16", "v5e", "V5P:2x2x4")]
    assert [x.shape for x in found] == [(1,), (16,), (1, 1), (2, 2, 4)]
    assert [x.count for x in found] == [1, 16, 1, 16]


def made_up(peak: int, **changes) -> Planned:
    """A plan of GPT-2 for two H100, in which a device needs so many bytes."""
    options = Options(**dict(mlp="gelu", dtype="bfloat16", mesh="fsdp:2", max_iters=3600) | changes)
    memory = Memory(weights=GIB, optimizer=2 * GIB, peak=peak, available=72 * GIB, temporaries=GIB)
    sent = [Message("all-gather", "fsdp", 2, 1e9), Message("all-reduce", "fsdp", 1, 5e8)]
    config = model_config(options, 50304)
    how = choose_how(options, config)
    return Planned(options, parse_target("H100:2"), config, memory, how, flops=4e12, sent=sent)


def rows(printed: str) -> dict[str, list[float]]:
    """The numbers of each row, by its name."""
    found = re.findall(r"^(\D[^\n]*?) {2,}(\d\S*)(?:  (\d\S*) to (\d\S*))?$", printed, re.M)
    return {name: [float(x.replace(",", "")) for x in numbers if x] for name, *numbers in found}


def test_a_plan_says_what_a_device_does_and_what_the_run_costs_at_the_mfu_of_published_runs():
    planned = made_up(peak=8 * GIB)
    found = rows(plan.describe(planned))
    tokens = planned.options.tokens_per_step
    flops = tokens * flops_per_token(planned.config, 1024)
    assert found["model, TFLOP"] == [pytest.approx(flops / 2 / 1e12, rel=0.01)]
    assert found["program, TFLOP"] == [2] and found["sent along fsdp, GB"] == [2.5]
    mfu, low, high = found["MFU, % of 989 TFLOP/s"]
    assert mfu == pytest.approx(100 * RUNS.mfu[RUNS.device.isin(["H100", "H200"])].median(), rel=0.01)
    seconds = flops / (2 * mfu / 100 * 989e12)
    for name, of in {"ms a step": 1e3, "hours, 3,600 steps": 1, "dollars, 3,600 steps": 2 * 3.99}.items():
        expected = [of * seconds, of * seconds * mfu / high, of * seconds * mfu / low]
        assert found[name] == pytest.approx(expected, rel=0.02)
    assert found["tokens/s"][0] == pytest.approx(tokens / seconds, rel=0.02)


def test_a_plan_names_what_its_time_cannot_be_taken_from():
    assert "no time: " in plan.describe(made_up(GIB, dtype="float32")).splitlines()[-1]
    assert "no time: " in plan.describe(made_up(GIB, lora_rank=8)).splitlines()[-1]
    assert "smaller than any" in plan.describe(made_up(GIB, n_layer=2))
    assert "smaller than any" not in plan.describe(made_up(GIB))


@pytest.mark.parametrize("peak, fits, fraction", [(50, True, False), (70, True, True), (73, False, False)])
def test_a_gpu_that_a_step_nearly_fills_has_to_lend_jax_more_of_its_memory(peak, fits, fraction):
    printed = plan.describe(made_up(peak * GIB))
    assert (" of 72.00: it fits" in printed) == fits
    assert ("XLA_PYTHON_CLIENT_MEM_FRACTION" in printed) == fraction


# --- with requirements-plan.txt -----------------------------------------------------------------------------


@pytest.mark.accelerator
@pytest.mark.parametrize("on, mesh", [("H100", "data:1"), ("v5e:2x4", "fsdp:8")])
def test_a_step_is_planned_for_devices_that_are_not_there(on, mesh, optimized, capsys):
    prepare_to_compile()
    options = Options(**TINY, mesh=mesh, vocab_size=512)
    found = fit.plan(options, parse_target(on), load_meta(options.dataset, options.vocab_size))
    printed = plan.describe(found)
    assert "Nothing was run" in printed and "it fits" in printed and "ms a step" in printed
    assert "warning: " not in capsys.readouterr().err
    assert found.flops == options.tokens_per_step * flops_per_token(found.config, options.block_size)
    assert {x.axes for x in found.sent} == ({"fsdp"} if mesh == "fsdp:8" else set())
    # Weights are gathered once, in bfloat16 or float32, and gradients summed in float32.
    weights = 4 * count_parameters(found.config)
    sent = sum(x.times * x.sent for x in found.sent)
    assert mesh == "data:1" or 7 / 8 * weights * 2.5 <= sent <= 7 / 8 * weights * 3.1


@pytest.mark.accelerator
def test_a_step_that_does_not_fit_is_told_with_what_makes_it_fit():
    words = flags(TINY, vocab_size=512, batch_size=32768, gradient_accumulation_steps=1, remat="block")
    done = run_python("plan.py", *words, "--on=v5e", JAX_DISABLE_MOST_OPTIMIZATIONS=0)
    assert done.returncode == 0, done.stderr
    assert "It does not fit: needs " in done.stdout and " GiB, a v5e has 15.75" in done.stdout
    *failed, fits = done.stdout.split("\ntrying --batch_size=")[1:]
    assert all("it does not fit" in tried and "ms a step" not in tried for tried in failed)
    assert ": it fits" in fits and "ms a step" in fits


def test_show_sharding_prints_every_parameter_and_starts_no_run(tmp_path, tiny, capsys):
    plan.main([*tiny(tmp_path / "out", mesh="fsdp:4,tensor:2"), "--show_sharding"])
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines() if line and "(" in line}
    options = replace(Options(), n_layer=2, n_head=2, n_embd=16, block_size=8)
    assert lines.keys() >= arrays_by_name(state_shapes(model_config(options, 28), options).model).keys()
    c_proj = lines["blocks.mlp.c_proj.weight"]  # (2, 64, 16), a part on each of 8 devices
    assert "P(None, tensor, fsdp)" in c_proj and c_proj.endswith(f"{4 * 2 * 64 * 16 / 8 / 1e6:.3f}")
    assert not (tmp_path / "out").exists()
