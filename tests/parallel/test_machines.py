"""How long simulated devices wait for each other, how programs compile, and what the next start finds."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from parallel.machines import choose_device, reuse_freed_memory, wait_for_simulated_devices
from tests.helpers import error_line, losses, newest_checkpoint, refusal, run_python, slowly


@pytest.mark.parametrize("given", ["", "--xla_cpu_collective_call_terminate_timeout_seconds=5"])
def test_simulated_devices_wait_for_each_other_unless_the_user_says_how_long(monkeypatch, given):
    monkeypatch.setenv("XLA_FLAGS", given)  # these tests have 8 devices, so this XLA knows the flags
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    for _ in range(2):
        wait_for_simulated_devices()
    flags = [flag.split("=") for flag in os.environ["XLA_FLAGS"].split()]
    prefix = "--xla_cpu_collective_call_"
    names = [f"{prefix}{event}_timeout_seconds" for event in ("terminate", "warn_stuck")]
    assert sorted(name for name, _ in flags) == names
    assert (dict(flags)[names[0]] == "5") == bool(given)
    assert os.environ["PJRT_NPROC"] == "32"


@pytest.mark.parametrize(
    "device, found, given, level",
    [
        ("cpu", (), "", "1"),
        ("auto", (), "", "1"),
        ("auto", ("jax_plugins",), "", None),  # a GPU's plugin
        ("cpu", ("jax_plugins",), "", "1"),
        ("cpu", (), "--xla_backend_optimization_level=2", "2"),
    ],
)
def test_programs_for_a_cpu_compile_sooner_unless_the_user_says_otherwise(
    monkeypatch, device, found, given, level
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in found)
    monkeypatch.setenv("XLA_FLAGS", given)
    choose_device(device)
    flags = dict(flag.split("=") for flag in os.environ["XLA_FLAGS"].split())
    assert flags.get("--xla_backend_optimization_level") == level


@pytest.mark.parametrize("command", ["train", "sample", "evaluate", "bench"])
def test_a_device_that_is_not_there_is_one_line(command, tmp_path):
    before = jax.config.jax_platforms
    try:
        said = refusal(import_module(command).main, ["--device=tpu", f"--out_dir={tmp_path}"])
    finally:
        jax.config.update("jax_platforms", before)
    assert said.startswith("device=tpu: JAX finds none on this machine; use --device=cpu")


@pytest.mark.parametrize("platforms", ["cuda", *slowly("nonsense")])
def test_a_platform_that_is_not_there_is_one_line_like_a_device(platforms, tiny, tmp_path):
    done = run_python("train.py", *tiny(tmp_path, device="auto"), JAX_PLATFORMS=platforms)
    said = error_line(done.stderr)
    assert said.startswith(f"JAX_PLATFORMS={platforms}: JAX finds none on this machine; use --device=cpu")


@pytest.mark.parametrize("share, keeps", [(0.05, True), (0.2, False)])
def test_a_step_keeps_what_it_frees_unless_that_is_much_of_the_memory(share, keeps, monkeypatch):
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr("os.sysconf", sizes.get, raising=False)  # Windows has none
    plan = SimpleNamespace(temp_size_in_bytes=share * 4096 * 1000)
    told = []
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(mallopt=lambda *words: told.append(words)))
    reuse_freed_memory(SimpleNamespace(memory_analysis=lambda: plan))
    assert told == ([(-4, 0), (-1, -1)] if keeps else [])


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


HIDDEN = """
import os, runpy, signal, sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None
for module, name in ((os, "sysconf"), (os, "O_NOFOLLOW"), (os, "O_NONBLOCK"), (signal, "SIGHUP")):
    delattr(module, name)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_trains_and_resumes_without_what_windows_lacks(tiny, tmp_path):
    for iterations in (2, 3):
        options = tiny(tmp_path, max_iters=iterations, init_from="auto", compilation_cache=False)
        done = run_python("-c", HIDDEN, "train.py", *options)
        assert done.returncode == 0, done.stderr
        assert newest_checkpoint(tmp_path) == iterations and not list(tmp_path.glob("lock*"))


COMPILES = """
import jax
from parallel.machines import keep_compiled_programs
keep_compiled_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # this one is quick
print(jax.jit(lambda x: x * x + 1)(3.0))
"""


def compiled(cache: Path, **environment) -> tuple[list[str], list[str]]:
    """Run COMPILES in a process of its own. Return the programs kept below `cache`, and what it printed."""
    run = subprocess.run(
        [sys.executable, "-c", COMPILES],
        env={name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
        | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(Path(__file__).parents[2])}
        | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(path.name for path in cache.rglob("*-cache")), (run.stdout + run.stderr).splitlines()


def test_compiled_programs_are_kept_for_the_next_start_of_this_user(tmp_path):
    kept, printed = compiled(tmp_path / "cache")
    assert len(kept) == 1 and kept[0].startswith("jit__lambda") and printed == ["10.0"]
    (folder,) = (tmp_path / "cache" / "nanojaxgpt").iterdir()
    assert folder.stat().st_mode & 0o077 == 0  # it holds machine code
    assert compiled(tmp_path / "cache") == (kept, ["10.0"])


def test_without_a_cache_folder_every_start_compiles(tmp_path):
    (tmp_path / "file").touch()
    assert compiled(tmp_path / "file" / "cache") == ([], ["10.0"])


def test_a_folder_that_jax_was_told_of_is_used(tmp_path):
    kept, _ = compiled(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))
    assert len(kept) == 1 and not (tmp_path / "nanojaxgpt").exists()
