"""Sizes that no machine can hold are refused in one line, before anything is made of them."""

from dataclasses import replace
from string import ascii_lowercase

import jax
import pytest

import bench
import evaluate
import sample
import train
from config.options import Options
from data.tokenizer import CharTokenizer
from parallel.mesh import parse
from parallel.pipeline.__main__ import main as print_schedule
from runs import memory
from runs.manifest import Manifest
from runs.memory import check_training
from tests.helpers import refusal, save_run
from training.state import create_state, model_config

HUGE = [  # terabytes; a larger integer is refused as an option
    {"n_embd": 10**9},
    {"n_layer": 10**9, "n_embd": 256},
    {"vocab_size": 2 * 10**9, "n_embd": 4096},
    {"block_size": 2 * 10**9, "batch_size": 4096},
    {"batch_size": 2 * 10**9, "block_size": 4096},
    {"gradient_accumulation_steps": 2 * 10**9, "block_size": 4096},
]


@pytest.mark.parametrize("changes", HUGE, ids=str)
@pytest.mark.parametrize("command", [train, bench])
def test_a_run_that_cannot_fit_is_refused_before_it_is_made(tiny, tmp_path, command, changes):
    said = refusal(command.main, tiny(tmp_path / "out", **changes))
    name = next(iter(changes))
    assert f"{name}={changes[name]}" in said and "takes at least" in said and " GB, and there are " in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("planning", [(train, "--show_sharding=True"), (bench, "--memory")], ids=str)
def test_a_plan_may_be_of_what_does_not_fit_here_but_not_of_anything(tiny, tmp_path, planning):
    command, option = planning
    said = refusal(command.main, [*tiny(tmp_path, n_embd=10**9), option])
    assert "n_embd=1000000000" in said


@pytest.fixture(scope="module")
def run(tiny_data, tmp_path_factory):
    options = replace(Options(), n_layer=1, n_head=1, n_embd=16, block_size=8, dataset=str(tiny_data))
    state = create_state(model_config(options, 28), options)
    tokenizer = CharTokenizer("\n." + ascii_lowercase).to_json()
    return save_run(tmp_path_factory.mktemp("run"), state, Manifest(options, 28, tokenizer, None))


@pytest.mark.parametrize(
    "command, name, size",
    [(sample, "num_samples", 2 * 10**9), (evaluate, "batch_size", 2 * 10**9)],
)
def test_samples_and_batches_that_cannot_fit_are_refused(run, command, name, size):
    said = refusal(command.main, [f"--out_dir={run}", "--device=cpu", f"--{name}={size}"])
    assert f"{name}={size}" in said and "takes at least" in said


def test_a_state_is_refused_from_the_first_byte_too_many(monkeypatch):
    options = replace(Options(), n_layer=2, n_head=4, n_embd=64, block_size=128, optimizer="muon")
    config = model_config(options, 512)
    taken = sum(x.nbytes for x in jax.tree.leaves(create_state(config, options)))
    monkeypatch.setattr(memory, "device_bytes", lambda: taken)
    check_training(config, options)
    monkeypatch.setattr(memory, "device_bytes", lambda: taken - 1)
    assert "the state of n_layer=2" in refusal(check_training, config, options)


@pytest.mark.parametrize("name", ["stages", "virtual_stages", "microbatches"])
def test_a_schedule_too_long_to_print_is_refused(name):
    said = refusal(print_schedule, ["--schedule=interleaved", "--microbatches=8", f"--{name}=1000000000"])
    assert f"{name}=1000000000" in said


@pytest.mark.parametrize("mesh", ["data:1000000000000", "data:-1,fsdp:1000000000000"])
def test_a_mesh_of_more_devices_than_there_are_is_refused(mesh):
    assert f"mesh={mesh} needs" in refusal(parse, mesh, 8)
