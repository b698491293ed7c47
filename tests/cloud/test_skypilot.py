"""cloud/skypilot.yaml: what its shell commands start, and that SkyPilot reads it.

SkyPilot wants an older click than wandb does, so it cannot be in the same environment as the other tools for
the tests: SKYPILOT_PYTHON names the Python of one that has it.
"""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from config.command_line import given
from config.options import Options

FILE = Path(__file__).parents[2] / "cloud" / "skypilot.yaml"
TASK = yaml.safe_load(FILE.read_text())


def on_machine(section: str, folder: Path, commands: dict[str, str], **variables) -> str:
    """What a section prints, in a folder where each of `commands` is a shell script of that text."""
    for name, text in commands.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), **variables}
    shell = ["bash", "-c", TASK[section]]
    return subprocess.run(
        shell, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def started(folder: Path, **variables) -> list[str]:
    """The words after `train.py` that the run starts it with."""
    envs = {name: value for name, value in TASK["envs"].items() if value is not None}
    printed = on_machine("run", folder, {".venv/bin/python": 'printf "%s\\n" "$@"'}, **envs | variables)
    script, *words = printed.splitlines()
    assert script == "train.py"
    return words


def test_one_machine_trains_into_the_bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(FILE.parents[1])
    words = started(tmp_path, SKYPILOT_NUM_NODES="1", SKYPILOT_NODE_RANK="0", SKYPILOT_NODE_IPS="10.0.0.1")
    quickstart = given(["config/quickstart.py"], Options)
    assert given(words, Options) == quickstart | {"out_dir": "/runs/my-run", "init_from": "auto"}
    assert "/runs" in TASK["file_mounts"]


def test_every_machine_is_told_where_the_others_are(tmp_path):
    for rank in range(2):
        words = started(
            tmp_path,
            ARGS="--n_layer=2 --mesh=data:2,fsdp:8",
            RUN="big",
            SKYPILOT_NUM_NODES="2",
            SKYPILOT_NODE_RANK=str(rank),
            SKYPILOT_NODE_IPS="10.0.0.1\n10.0.0.2",
        )
        assert given(words, Options) == {
            "n_layer": 2,
            "mesh": "data:2,fsdp:8",
            "out_dir": "/runs/big",
            "init_from": "auto",
            "coordinator": "10.0.0.1:8476",
            "num_processes": 2,
            "process_id": rank,
        }


@pytest.mark.parametrize("status, extra", [(0, "jax[cuda13]"), (1, "jax[tpu]")])
def test_jax_is_installed_for_what_is_there(tmp_path, status, extra):
    printed = on_machine("setup", tmp_path, {"nvidia-smi": f"exit {status}", "uv": 'echo "uv $@"'})
    assert printed.splitlines()[-1] == f"uv pip install --python .venv -r requirements.txt {extra}"


@pytest.mark.skipif("SKYPILOT_PYTHON" not in os.environ, reason="SKYPILOT_PYTHON is not set")
@pytest.mark.parametrize("accelerator", ["A100-80GB", "H100", "tpu-v6e-8", "tpu-v5p-8"])
def test_skypilot_reads_it(accelerator, tmp_path):
    program = f"""
import sky, yaml
values = yaml.safe_load(open({str(FILE)!r}))
task = sky.Task.from_yaml_config(values, env_overrides=[("BUCKET", "my-bucket")])
task.set_resources_override({{"accelerators": {accelerator!r}}})  # as `sky launch --gpus` does
(resources,) = task.resources
print(resources.accelerators, task.num_nodes, *task.storage_mounts)
"""
    command = [os.environ["SKYPILOT_PYTHON"], "-c", program]
    printed = subprocess.run(
        command, env=os.environ | {"HOME": str(tmp_path)}, check=True, capture_output=True, text=True
    ).stdout
    assert printed.splitlines()[-1] == f"{{'{accelerator}': 1}} 1 /runs"
