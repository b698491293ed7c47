"""plan.py: bad input is one line; with the compilers installed, a step is planned (-m accelerator)."""

import re
from dataclasses import replace

import pytest

import plan
from config.options import Options
from data.dataset import load_meta
from model import GPTConfig
from runs.checkpoint import arrays_by_name
from runs.metrics import flops_per_token
from tests.helpers import refusal, run_python
from tools.planning import fit, target
from tools.planning.goals import tokens_until
from tools.planning.target import parse_target, prepare_to_compile, this_machine
from training.state import model_config, state_shapes

TINY = dict(
    **dict(n_layer=2, n_head=2, n_embd=128, block_size=128),
    **dict(batch_size=8, gradient_accumulation_steps=2, max_iters=100),
)
FLAGS = [f"--{name}={value}" for name, value in (TINY | {"vocab_size": 512}).items()]


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], "--on is missing: the device to plan for, as in --on=H100; see --help"),
        (["--on=abacus"], "--on=abacus: unknown device 'abacus'; known are RTX4090, L4, A100-40GB, "),
        (
            ["--on=H100:0"],
            "--on=H100:0: unknown size '0'; H100 is planned by 1, 2, 3, ",
        ),
        (
            ["--on=H100:12"],
            "--on=H100:12: unknown size '12'; H100 is planned by 1, 2, 3, ",
        ),
        (
            ["--on=RTX4090:16"],
            "--on=RTX4090:16: unknown size '16'; RTX4090 is planned by 1, 2, 3, ",
        ),
        (["--on=v5e:3x3"], "--on=v5e:3x3: unknown size '3x3'; v5e is planned by 1x1, 2x2, 2x4, 4x4, 4x8, "),
        (
            ["--on=H100", "--budget=5"],
            "--on=H100: with --budget or --hours, all devices are planned; leave it out",
        ),
        (["--until=val3.28"], "--until needs --budget or --hours; see --help"),
        (["--budgt=5"], "--budgt is not an option; see --help"),
        (["--budget=-5"], "--budget is -5: it should be greater than 0"),
        (["--budget=5", "--until=soon"], "--until=soon: expected a val loss, as in val3.28, or tokens, "),
        (["--budget=5", "--until=val2"], "--until=val2: 1M parameters come to "),
        (["--for=config/no_such.py", "--hours=1"], "config/no_such.py: "),
        (["--on=H100:8", "--mesh=fsdp:4"], "mesh=fsdp:4 has 4 devices, and --on=H100:8 8: use all"),
        (["--on=H100:2", "--mesh=fsdp:4"], "mesh=fsdp:4 needs 4 devices, of 2: change its axes"),
    ],
)
def test_bad_input_is_refused_in_one_line(words, expected, monkeypatch):
    monkeypatch.setattr(plan, "prepare_to_compile", lambda: None)  # which is for a program of its own
    assert refusal(plan.main, [*FLAGS, *words]).startswith(expected)


def test_tokens_until_a_loss_are_those_of_the_run_that_anchors_them():
    gpt2 = GPTConfig(n_hidden=3072, mlp="gelu", bias=True)
    assert tokens_until("val3.28", gpt2) == pytest.approx(10e9, rel=0.02)
    assert tokens_until("val3.1", gpt2) > 2 * tokens_until("val3.28", gpt2)
    assert tokens_until("25e9", gpt2) == 25e9


def test_this_machine_is_planned_by_rates_that_are_measured(monkeypatch, capsys):
    monkeypatch.setattr(target, "BUDGET", 0.01)
    monkeypatch.setattr(target, "WIDTHS", target.WIDTHS[1:4])
    monkeypatch.setattr(target, "LENGTHS", target.LENGTHS[1:4])
    here = this_machine()
    monkeypatch.setattr(plan, "this_machine", lambda: here)
    plan.main([*FLAGS, "--on=here", "--device=cpu"])
    printed = capsys.readouterr().out
    assert "(at the rates that products, memory and small operations have here, " in printed
    assert "expected" not in printed and "$" not in printed  # no evidence, no price
    speeds = here.speeds
    assert all(rate > 1e8 for of in (speeds.bfloat16, speeds.float32, speeds.memory) for _, rate in of)
    assert 1e-8 < speeds.kernel < 1e-3


@pytest.mark.parametrize("on, package", [("H100", "jax-cuda13-plugin"), ("v5e:2x4", "libtpu")])
def test_a_missing_compiler_is_one_line_that_says_what_to_install(on, package, monkeypatch):
    def missing(name):
        raise target.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(target.metadata, "distribution", missing)
    expected = f"--on={on}: its compiler, {package}, is not installed: pip install -r requirements-plan.txt"
    assert refusal(lambda: parse_target(on).devices) == expected


def test_a_target_is_a_device_and_how_many():
    found = [parse_target(text) for text in ("h100", "H100:16", "v5e", "V5P:2x2x4")]
    assert [x.shape for x in found] == [(1,), (16,), (1, 1), (2, 2, 4)]
    assert [x.count for x in found] == [1, 16, 1, 16]


# --- with requirements-plan.txt -----------------------------------------------------------------------------


def planned(*words: str) -> str:
    """Run plan.py with XLA's optimisations, which other tests do without, and return what it prints."""
    done = run_python("plan.py", *FLAGS, *words, JAX_DISABLE_MOST_OPTIMIZATIONS=0)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.accelerator
@pytest.mark.parametrize("on, mesh", [("H100", "data:1"), ("v5e:2x4", "fsdp:8")])
def test_a_step_is_planned_for_devices_that_are_not_there(on, mesh, optimized, capsys):
    prepare_to_compile()
    options = Options(**TINY, mesh=mesh, vocab_size=512)
    found = fit.plan(options, parse_target(on), load_meta(options.dataset, options.vocab_size))
    printed = plan.describe(found)
    assert "nothing below was measured" in printed and "it fits" in printed
    assert "warning: loop" not in capsys.readouterr().err
    classes = found.cost.by_class()
    assert {"matrix products", "attention", "loss", "optimizer"} <= set(classes.index)
    assert ("network: fsdp" in classes.index) == (mesh == "fsdp:8")
    assert found.cost.seconds == pytest.approx(classes.seconds.sum())
    rates = re.search(r"^tokens/s +([\d,]+) +([\d,]+) \(([\d,]+) to ([\d,]+)\)$", printed, re.M).groups()
    at_best, expected, low, high = (int(rate.replace(",", "")) for rate in rates)
    assert at_best == pytest.approx(options.tokens_per_step / found.cost.hidden_seconds, abs=1)
    assert low < expected < high
    # The formula counts the whole of attention's products, and a fused kernel leaves the masked half out.
    formula = options.tokens_per_step * flops_per_token(found.config, options.block_size)
    counted = classes.flops.sum() * found.target.count
    attention = 12 * options.n_layer * options.block_size * options.n_embd * options.tokens_per_step
    assert formula - attention / 2 <= counted <= 1.1 * formula


@pytest.mark.accelerator
def test_a_step_that_does_not_fit_is_told_with_what_makes_it_fit():
    printed = planned("--on=v5e", "--batch_size=32768", "--gradient_accumulation_steps=1", "--remat=block")
    assert "It does not fit: needs " in printed and " GiB, a v5e has 15.75" in printed
    *failed, fits = printed.split("\ntrying --batch_size=")[1:]
    assert all("it does not fit" in tried and "ms a step" not in tried for tried in failed)
    assert ": it fits" in fits and "ms a step" in fits


@pytest.mark.accelerator
def test_the_devices_that_reach_a_goal_are_named_the_cheapest_first():
    # All of them take minutes.
    two = "goals.DEVICES = {name: goals.DEVICES[name] for name in ('H100', 'v5e')}"
    words = [*FLAGS, "--budget=1", "--until=1e8"]
    program = f"import plan; from tools.planning import goals; {two}; plan.main({words})"
    done = run_python("-c", program, JAX_DISABLE_MOST_OPTIMIZATIONS=0)
    rows = re.findall(r"^(\S+:\S+) +(?:data|fsdp):\d+ +[\d.,]+ +\S+ \(.*?\) +\$(\S+) \(", done.stdout, re.M)
    dollars = [float(cost) for _, cost in rows]
    assert {name.partition(":")[0] for name, _ in rows} == {"H100", "v5e"}, done.stderr
    assert dollars == sorted(dollars) and max(dollars) <= 1
    assert "0.1 billion tokens, within $1." in done.stdout and "Prices were read in" in done.stdout


def test_show_sharding_prints_every_parameter_and_starts_no_run(tmp_path, tiny, capsys):
    plan.main([*tiny(tmp_path / "out", mesh="fsdp:4,tensor:2"), "--show_sharding"])
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines() if line and "(" in line}
    options = replace(Options(), n_layer=2, n_head=2, n_embd=16, block_size=8)
    assert lines.keys() >= arrays_by_name(state_shapes(model_config(options, 28), options).model).keys()
    c_proj = lines["blocks.mlp.c_proj.weight"]  # (2, 64, 16), a part on each of 8 devices
    assert "P(None, tensor, fsdp)" in c_proj and c_proj.endswith(f"{4 * 2 * 64 * 16 / 8 / 1e6:.3f}")
    assert not (tmp_path / "out").exists()
