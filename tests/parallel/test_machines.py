"""How long simulated devices wait for each other, how programs compile, and what the next start finds."""

import os

import jax
import pytest

import train
from parallel.machines import choose_device, keep_compiled_programs, wait_for_simulated_devices
from tests.helpers import error_line, losses, refusal, run_python


def test_simulated_devices_wait_for_each_other_unless_the_user_says_how_long(monkeypatch):
    flag = "--xla_cpu_collective_call_terminate_timeout_seconds"
    for given in ("", f"{flag}=5"):
        monkeypatch.setenv("XLA_FLAGS", given)  # these tests have 8 devices, so this XLA knows the flag
        wait_for_simulated_devices()
        assert os.environ["XLA_FLAGS"].count(flag) == 1
        assert f"{flag}=5" in os.environ["XLA_FLAGS"] or not given


@pytest.mark.parametrize(
    "device, plugin, sooner",
    [("cpu", "jax_plugins", True), ("auto", "", True), ("auto", "jax_plugins", False)],
)
def test_programs_compile_sooner_where_no_gpu_may_run_them(monkeypatch, device, plugin, sooner):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == plugin)
    monkeypatch.setenv("XLA_FLAGS", "")
    choose_device(device)
    assert ("--xla_backend_optimization_level=1" in os.environ["XLA_FLAGS"]) == sooner


def test_a_device_that_is_not_there_is_one_line(tmp_path, jax_is_as_before):
    said = refusal(train.main, ["--device=tpu", f"--out_dir={tmp_path}"])
    assert said.startswith("device=tpu: JAX finds none on this machine; use --device=cpu")


@pytest.mark.slow
def test_a_platform_that_is_not_there_is_one_line_like_a_device(tiny, tmp_path):
    done = run_python("train.py", *tiny(tmp_path, device="auto"), JAX_PLATFORMS="cuda")
    said = error_line(done.stderr)
    assert said.startswith("JAX_PLATFORMS=cuda: JAX finds none on this machine; use --device=cpu")


TRAIN = """
import os, sys, train
train.main(sys.argv[1:])
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.slow
def test_deterministic_sets_the_flag_of_gpus_before_jax_starts_and_changes_nothing_on_a_cpu(tiny, tmp_path):
    """Whether a GPU then computes the same bits twice, no test can say without one."""
    for name in ("True", "False"):
        done = run_python("-c", TRAIN, *tiny(tmp_path / name, max_iters=2, deterministic=name))
        assert done.returncode == 0, done.stderr
        assert ("--xla_gpu_deterministic_ops=true" in done.stdout) == (name == "True")
    assert losses(tmp_path / "True") == losses(tmp_path / "False")


@pytest.fixture
def untold(jax_is_as_before):
    """JAX as it starts, told of no folder for what it compiles."""
    jax.config.update("jax_compilation_cache_dir", None)


def test_compiled_programs_are_kept_for_the_next_start_of_this_user_alone(tmp_path, monkeypatch, untold):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_compiled_programs()
    (folder,) = (tmp_path / "nanojaxgpt").iterdir()
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert folder.stat().st_mode & 0o077 == 0  # it holds machine code


def test_without_a_cache_folder_every_start_compiles(tmp_path, monkeypatch, untold):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_that_jax_was_told_of_is_used(tmp_path, monkeypatch):
    told = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == told and not list(tmp_path.iterdir())
