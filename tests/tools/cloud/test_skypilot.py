"""tools/cloud/skypilot.yaml and skypilot_serve.yaml: what their shell commands start."""

import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from common.command_line import given
from config.options import Options
from serve import ServeOptions
from tests.helpers import ROOT, wait_until

CLOUD = ROOT / "tools" / "cloud"
TASK, SERVICE = (yaml.safe_load((CLOUD / f"{x}.yaml").read_text()) for x in ("skypilot", "skypilot_serve"))
ALONE = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}
PYTHON = ".venv/bin/python"
SHOW = 'printf "%s\\n" "$@"'  # in the place of Python


def start(text: str, folder: Path, commands: dict[str, str], task=TASK, **variables: str) -> subprocess.Popen:
    """Start a section of a task in a folder where each of `commands` is a shell script of that text."""
    for name, script in commands.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    (folder / "runs").mkdir(exist_ok=True)
    there = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "RUNS": f"{folder}/runs"}
    defaults = {name: value for name, value in (task["envs"] | task["secrets"]).items() if value is not None}
    return subprocess.Popen(
        ["bash", "-c", text.replace("/runs/", f"{folder}/runs/")],  # nobody may write at /
        cwd=folder,
        env=defaults | ALONE | variables | there,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, program: str, task=TASK, **variables) -> tuple[int, list[str]]:
    """The status of a task's run with `program` for Python, and the lines that it prints."""
    process = start_run(folder, program, task, **variables)
    printed, _ = process.communicate(timeout=20)
    return process.returncode, printed.splitlines()


def start_run(folder: Path, program: str, task=TASK, **variables) -> subprocess.Popen:
    # SkyPilot appends lines, which wait until the bucket has everything.
    text = f"{task['run']}\nif true; then echo uploaded; fi\n"
    return start(text, folder, {PYTHON: program}, task, **variables)


def test_one_machine_trains_into_the_bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    status, (script, *words, uploaded) = run(tmp_path, SHOW)
    assert (status, script, uploaded) == (0, "train.py", "uploaded")
    theirs = {"out_dir": f"{tmp_path}/runs/my-run", "init_from": "auto"}
    assert given(words, Options) == given(["config/quickstart.py"], Options) | theirs
    assert TASK["envs"]["RUNS"] in TASK["file_mounts"]


def test_every_machine_is_told_where_the_others_are(tmp_path):
    nodes = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"}
    _, (_, *words, _) = run(tmp_path, SHOW, ARGS="--n_layer=2", RUN="big", **nodes)
    assert given(words, Options) == {
        **{"n_layer": 2, "out_dir": f"{tmp_path}/runs/big", "init_from": "auto"},
        **{"coordinator": "10.0.0.1:8476", "num_processes": 2, "process_id": 1},
    }


def test_its_status_is_that_of_training_and_the_upload_is_waited_for(tmp_path):
    """`sky jobs` starts a run again after 143, and a failure is not to count as a success."""
    assert run(tmp_path, "exit 1") == (1, ["uploaded"])
    process = start_run(
        tmp_path, "trap 'echo saved; exit 143' TERM; echo > ready; while :; do sleep 0.05; done"
    )
    wait_until((tmp_path / "ready").exists, process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=20)
    assert (process.returncode, printed) == (143, "saved\nuploaded\n")


def test_data_are_prepared_once_before_training(tmp_path):
    written = "if [ $1 != train.py ]; then mkdir -p data/tinystories; touch data/tinystories/train.bin; fi"
    variables = {"DATA": "tinystories --limit=10", "ARGS": ""}
    prepared = ["data/tinystories/prepare.py", "--limit=10"]
    failed = run(tmp_path, f"{SHOW}\nexit 2", **variables)
    assert failed == (2, [*prepared, "uploaded"])  # and nothing is trained
    for expected in ([*prepared, "train.py"], ["train.py"]):
        status, lines = run(tmp_path, f"{SHOW}\n{written}", **variables)
        assert status == 0 and lines[: len(expected)] == expected


def test_records_that_never_reached_the_bucket_are_those_that_were_copied(tmp_path):
    """metrics.jsonl is open while a run trains, so that a lost machine takes it along."""
    folder = tmp_path / "runs" / "my-run"
    folder.mkdir(parents=True)
    (folder / "metrics.kept.jsonl").write_text("1\n2\n")
    for written, found in (None, "1\n2\n"), ("1\n2\n3\n", "1\n2\n3\n"):
        if written:
            (folder / "metrics.jsonl").write_text(written)
        assert run(tmp_path, "exit 0")[0] == 0
        assert (folder / "metrics.jsonl").read_text() == found


@pytest.mark.parametrize(
    "task, smi, extra",
    [
        (TASK, "echo 580.65.06", "jax[cuda13]"),
        (TASK, "exit 1", "jax[tpu]"),
        (SERVICE, "echo 570.124.06", "jax[cuda12]"),
    ],
)
def test_jax_is_installed_for_what_is_there(tmp_path, task, smi, extra):
    setup = task["setup"].replace("tools/cloud", str(CLOUD))
    process = start(setup, tmp_path, {"nvidia-smi": smi, "uv": 'echo "uv $@"'}, task)
    printed, _ = process.communicate(timeout=20)
    assert printed.splitlines()[-1] == f"uv pip install --python .venv -r requirements.txt {extra}"


def test_the_server_listens_to_the_balancer_and_wants_a_key(tmp_path):
    _, (script, *words, _) = run(tmp_path, SHOW, SERVICE, API_KEY="a-key-of-mine")
    options = ServeOptions(**given(words, ServeOptions))
    assert script == "serve.py" and options.out_dir == f"{tmp_path}/runs/my-run"
    assert (options.host, options.allowed_hosts, options.api_key) == ("0.0.0.0", "*", "a-key-of-mine")
    assert options.port == SERVICE["resources"]["ports"]
    for task in (TASK, SERVICE):  # no key is among what SkyPilot shows
        assert not [name for name in task["envs"] if re.search("KEY|TOKEN", name)]
