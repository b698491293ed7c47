"""tools/cloud/skypilot.yaml: what its shell commands start, and that SkyPilot reads it.

SkyPilot wants an older click than wandb does, so it cannot be in the same environment as the other tools for
the tests: SKYPILOT_PYTHON names the Python of one that has it.
"""

import config.interrupt  # noqa: F401  now: imported within a test, it would have Ctrl-C end them all

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from config.command_line import given
from config.options import Options
from tests.helpers import ROOT

CLOUD = ROOT / "tools" / "cloud"
FILE, SERVE = CLOUD / "skypilot.yaml", CLOUD / "skypilot_serve.yaml"
TASK, SERVICE = yaml.safe_load(FILE.read_text()), yaml.safe_load(SERVE.read_text())
ALONE = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}
# In the place of the lines that SkyPilot appends to a run, which wait until the bucket has everything.
APPENDED = 'if true; then echo "uploaded"; fi'


def start_on_machine(
    section: str, folder: Path, commands: dict[str, str], task=TASK, **variables
) -> subprocess.Popen:
    """Start a section in a folder where each of `commands` is a shell script of that text."""
    for name, text in commands.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    defaults = task["envs"] | task["secrets"]
    environment |= {name: value for name, value in defaults.items() if value is not None} | variables
    environment["RUNS"] = f"{folder}/runs"  # nobody may write at /
    text = task[section].replace("/runs/", f"{folder}/runs/")
    text += f"\n{APPENDED}\n" if section == "run" else ""
    (folder / "runs").mkdir(exist_ok=True)
    return subprocess.Popen(
        ["bash", "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def on_machine(section: str, folder: Path, commands: dict[str, str], **variables) -> tuple[int, str]:
    """The status with which a section ends, and what it prints."""
    process = start_on_machine(section, folder, commands, **variables)
    printed, _ = process.communicate(timeout=20)
    return process.returncode, printed


PYTHON = ".venv/bin/python"
SHOW = 'printf "%s\\n" "$@"'  # in the place of Python


def started(folder: Path, **variables) -> list[str]:
    """The words after `train.py` that the run starts it with."""
    status, printed = on_machine("run", folder, {PYTHON: SHOW}, **variables)
    script, *words, uploaded = printed.splitlines()
    assert (status, script, uploaded) == (0, "train.py", "uploaded")
    return [word.replace(f"{folder}/runs/", "/runs/") for word in words]


def test_one_machine_trains_into_the_bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = started(tmp_path, **ALONE)
    quickstart = given(["config/quickstart.py"], Options)
    assert given(words, Options) == quickstart | {"out_dir": "/runs/my-run", "init_from": "auto"}
    assert TASK["envs"]["RUNS"] in TASK["file_mounts"]


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


@pytest.mark.parametrize("status", [0, 1, 143])
def test_its_status_is_that_of_training_and_the_upload_is_waited_for(tmp_path, status):
    """`sky jobs` starts a run again after 143, and a failure is not to count as a success."""
    assert on_machine("run", tmp_path, {PYTHON: f"exit {status}"}, **ALONE) == (status, "uploaded\n")


def test_sigterm_reaches_training_and_what_it_saves_is_uploaded(tmp_path):
    program = "trap 'echo saved; exit 143' TERM; echo ready > ready; while :; do sleep 0.05; done"
    process = start_on_machine("run", tmp_path, {PYTHON: program}, **ALONE)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=20)
    assert (process.returncode, printed) == (143, "saved\nuploaded\n")


def test_data_are_prepared_once_before_training(tmp_path):
    show = (
        f"{SHOW}\nif [ $1 != train.py ]; then mkdir -p data/tinystories; touch data/tinystories/meta.json; fi"
    )
    variables = ALONE | {"DATA": "tinystories --limit=10", "ARGS": ""}
    failed = on_machine("run", tmp_path, {PYTHON: f"{SHOW}\nexit 2"}, **variables)
    assert failed == (2, "data/tinystories/prepare.py\n--limit=10\nuploaded\n")  # and nothing is trained
    for expected in (["data/tinystories/prepare.py", "--limit=10", "train.py"], ["train.py"]):
        status, printed = on_machine("run", tmp_path, {PYTHON: show}, **variables)
        assert status == 0
        assert [line for line in printed.splitlines() if line in expected] == expected


def test_records_that_never_reached_the_bucket_are_those_that_were_copied(tmp_path):
    """metrics.jsonl is open while a run trains, so that a lost machine takes it along."""
    run = tmp_path / "runs" / "my-run"
    run.mkdir(parents=True)
    (run / "metrics.kept.jsonl").write_text("1\n2\n")
    for written, found in (None, "1\n2\n"), ("1\n2\n3\n", "1\n2\n3\n"):
        if written:
            (run / "metrics.jsonl").write_text(written)
        assert on_machine("run", tmp_path, {PYTHON: "exit 0"}, **ALONE)[0] == 0
        assert (run / "metrics.jsonl").read_text() == found


@pytest.mark.parametrize("task", [TASK, SERVICE], ids=["train", "serve"])
@pytest.mark.parametrize(
    "smi, extra",
    [("echo 580.65.06", "jax[cuda13]"), ("echo 570.124.06", "jax[cuda12]"), ("exit 1", "jax[tpu]")],
)
def test_jax_is_installed_for_what_is_there(tmp_path, task, smi, extra):
    status, printed = on_machine("setup", tmp_path, {"nvidia-smi": smi, "uv": 'echo "uv $@"'}, task=task)
    if task is SERVICE and smi == "exit 1":
        assert status != 0  # it asks for a GPU
    else:
        assert printed.splitlines()[-1] == f"uv pip install --python .venv -r requirements.txt {extra}"


def test_the_server_listens_to_the_balancer_and_wants_a_key(tmp_path):
    from serve import ServeOptions, check_reachable

    _, printed = on_machine("run", tmp_path, {PYTHON: SHOW}, task=SERVICE, API_KEY="a-key-of-mine")
    script, *words, _ = printed.splitlines()
    options = ServeOptions(**given(words, ServeOptions))
    assert script == "serve.py" and options.out_dir == f"{tmp_path}/runs/my-run"
    assert (options.host, options.allowed_hosts, options.api_key) == ("0.0.0.0", "*", "a-key-of-mine")
    check_reachable(options)
    assert options.port == SERVICE["resources"]["ports"]


@pytest.mark.parametrize("task", [TASK, SERVICE], ids=["train", "serve"])
def test_no_key_is_among_what_skypilot_shows(task):
    assert {name for name in task["envs"] | task["secrets"] if re.search("KEY|TOKEN", name)} == {
        *task["secrets"]
    }


@pytest.mark.skipif("SKYPILOT_PYTHON" not in os.environ, reason="SKYPILOT_PYTHON is not set")
@pytest.mark.parametrize("accelerator", ["A100-80GB", "H100", "tpu-v6e-8", "tpu-v5p-8"])
def test_skypilot_reads_both_files(accelerator, tmp_path):
    program = f"""
import sky, yaml
values = yaml.safe_load(open({str(FILE)!r}))
task = sky.Task.from_yaml_config(values, env_overrides=[("BUCKET", "my-bucket")])
task.set_resources_override({{"accelerators": {accelerator!r}}})  # as `sky launch --gpus` does
(resources,) = task.resources
print(resources.accelerators, *task.storage_mounts, resources.autostop_config.down)
values = yaml.safe_load(open({str(SERVE)!r}))
envs, secrets = [("BUCKET", "my-bucket")], [("API_KEY", "a-key-of-mine")]
task = sky.Task.from_yaml_config(values, env_overrides=envs, secrets_overrides=secrets)
print(task.service.readiness_path, *task.storage_mounts, {{port for r in task.resources for port in r.ports}})
"""
    command = [os.environ["SKYPILOT_PYTHON"], "-c", program]
    environment = os.environ | {"HOME": str(tmp_path)}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    said = [f"{{'{accelerator}': 1}} /runs True", "/health /runs {'8000'}"]
    assert printed.splitlines()[-2:] == said
