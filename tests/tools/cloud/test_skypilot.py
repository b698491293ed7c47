"""tools/cloud/skypilot.yaml: what its shell commands start, and that SkyPilot reads it.

SkyPilot wants an older click than wandb does, so it cannot be in the same environment as the other tools for
the tests: SKYPILOT_PYTHON names the Python of one that has it.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from common.command_line import given
from config.options import Options
from tests.helpers import ROOT, wait_until

CLOUD = ROOT / "tools" / "cloud"
FILE, SERVE = CLOUD / "skypilot.yaml", CLOUD / "skypilot_serve.yaml"
TASK, SERVICE = yaml.safe_load(FILE.read_text()), yaml.safe_load(SERVE.read_text())
ALONE = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}
PYTHON = ".venv/bin/python"
SHOW = 'printf "%s\\n" "$@"'  # in the place of Python


def start_on_machine(
    section: str, folder: Path, commands: dict[str, str], task=TASK, **variables: str
) -> subprocess.Popen:
    """Start a section in a folder where each of `commands` is a shell script of that text."""
    for name, text in commands.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    defaults = {name: value for name, value in (task["envs"] | task["secrets"]).items() if value is not None}
    there = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "RUNS": f"{folder}/runs"}
    text = task[section].replace("/runs/", f"{folder}/runs/")  # nobody may write at /
    # SkyPilot appends lines to a run, which wait until the bucket has everything.
    text += "\nif true; then echo uploaded; fi\n" if section == "run" else ""
    (folder / "runs").mkdir(exist_ok=True)
    environment = defaults | ALONE | variables | there
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        ["bash", "-c", text], cwd=folder, env=environment, start_new_session=True, **pipes
    )


def on_machine(section: str, folder: Path, commands: dict[str, str], **variables) -> tuple[int, list[str]]:
    """The status with which a section ends, and the lines that it prints."""
    process = start_on_machine(section, folder, commands, **variables)
    printed, _ = process.communicate(timeout=20)
    return process.returncode, printed.splitlines()


def test_one_machine_trains_into_the_bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    status, (script, *words, uploaded) = on_machine("run", tmp_path, {PYTHON: SHOW})
    assert (status, script, uploaded) == (0, "train.py", "uploaded")
    theirs = {"out_dir": f"{tmp_path}/runs/my-run", "init_from": "auto"}
    assert given(words, Options) == given(["config/quickstart.py"], Options) | theirs
    assert TASK["envs"]["RUNS"] in TASK["file_mounts"]


def test_every_machine_is_told_where_the_others_are(tmp_path):
    nodes = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"}
    _, (_, *words, _) = on_machine("run", tmp_path, {PYTHON: SHOW}, ARGS="--n_layer=2", RUN="big", **nodes)
    assert given(words, Options) == {
        **{"n_layer": 2, "out_dir": f"{tmp_path}/runs/big", "init_from": "auto"},
        **{"coordinator": "10.0.0.1:8476", "num_processes": 2, "process_id": 1},
    }


@pytest.mark.parametrize("status", [0, 1, 143])
def test_its_status_is_that_of_training_and_the_upload_is_waited_for(tmp_path, status):
    """`sky jobs` starts a run again after 143, and a failure is not to count as a success."""
    assert on_machine("run", tmp_path, {PYTHON: f"exit {status}"}) == (status, ["uploaded"])


def test_sigterm_reaches_training_and_what_it_saves_is_uploaded(tmp_path):
    program = "trap 'echo saved; exit 143' TERM; echo ready > ready; while :; do sleep 0.05; done"
    process = start_on_machine("run", tmp_path, {PYTHON: program})
    wait_until((tmp_path / "ready").exists, process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=20)
    assert (process.returncode, printed) == (143, "saved\nuploaded\n")


def test_data_are_prepared_once_before_training(tmp_path):
    written = "if [ $1 != train.py ]; then mkdir -p data/tinystories; touch data/tinystories/meta.json; fi"
    variables = {"DATA": "tinystories --limit=10", "ARGS": ""}
    prepared = ["data/tinystories/prepare.py", "--limit=10"]
    failed = on_machine("run", tmp_path, {PYTHON: f"{SHOW}\nexit 2"}, **variables)
    assert failed == (2, [*prepared, "uploaded"])  # and nothing is trained
    for expected in ([*prepared, "train.py"], ["train.py"]):
        status, lines = on_machine("run", tmp_path, {PYTHON: f"{SHOW}\n{written}"}, **variables)
        assert status == 0 and lines[: len(expected)] == expected


def test_records_that_never_reached_the_bucket_are_those_that_were_copied(tmp_path):
    """metrics.jsonl is open while a run trains, so that a lost machine takes it along."""
    run = tmp_path / "runs" / "my-run"
    run.mkdir(parents=True)
    (run / "metrics.kept.jsonl").write_text("1\n2\n")
    for written, found in (None, "1\n2\n"), ("1\n2\n3\n", "1\n2\n3\n"):
        if written:
            (run / "metrics.jsonl").write_text(written)
        assert on_machine("run", tmp_path, {PYTHON: "exit 0"})[0] == 0
        assert (run / "metrics.jsonl").read_text() == found


@pytest.mark.parametrize("task", [TASK, SERVICE], ids=["train", "serve"])
@pytest.mark.parametrize(
    "smi, extra",
    [("echo 580.65.06", "jax[cuda13]"), ("echo 570.124.06", "jax[cuda12]"), ("exit 1", "jax[tpu]")],
)
def test_jax_is_installed_for_what_is_there(tmp_path, task, smi, extra):
    status, lines = on_machine("setup", tmp_path, {"nvidia-smi": smi, "uv": 'echo "uv $@"'}, task=task)
    if task is SERVICE and smi == "exit 1":
        assert status != 0  # it asks for a GPU
    else:
        assert lines[-1] == f"uv pip install --python .venv -r requirements.txt {extra}"


def test_the_server_listens_to_the_balancer_and_wants_a_key(tmp_path):
    from serve import ServeOptions

    _, (script, *words, _) = on_machine(
        "run", tmp_path, {PYTHON: SHOW}, task=SERVICE, API_KEY="a-key-of-mine"
    )
    options = ServeOptions(**given(words, ServeOptions))
    assert script == "serve.py" and options.out_dir == f"{tmp_path}/runs/my-run"
    assert (options.host, options.allowed_hosts, options.api_key) == ("0.0.0.0", "*", "a-key-of-mine")
    assert options.port == SERVICE["resources"]["ports"]
    for task in (TASK, SERVICE):  # no key is among what SkyPilot shows
        assert not [name for name in task["envs"] if re.search("KEY|TOKEN", name)]


@pytest.mark.skipif("SKYPILOT_PYTHON" not in os.environ, reason="SKYPILOT_PYTHON is not set")
def test_skypilot_reads_both_files(tmp_path):
    program = f"""
import sky, yaml
envs, secrets = [("BUCKET", "my-bucket")], [("API_KEY", "a-key-of-mine")]
task = sky.Task.from_yaml_config(yaml.safe_load(open({str(FILE)!r})), env_overrides=envs)
task.set_resources_override({{"accelerators": "tpu-v6e-8"}})  # as `sky launch --gpus` does
service = yaml.safe_load(open({str(SERVE)!r}))
service = sky.Task.from_yaml_config(service, env_overrides=envs, secrets_overrides=secrets)
print(*task.storage_mounts, *service.storage_mounts, service.service.readiness_path)
"""
    command = [os.environ["SKYPILOT_PYTHON"], "-c", program]
    environment = os.environ | {"HOME": str(tmp_path)}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines()[-1] == "/runs /runs /health"
