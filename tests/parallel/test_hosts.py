"""Two processes train like one that has the devices of both; and they stop, fail and go on together.

The processes are real, on the loopback interface of this machine. None is waited for without a deadline.
Several devices in each: pipeline/test_pipeline.py.
"""

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jax
import pytest

import evaluate
import train
from config.options import parse_options
from parallel.machines import abort, connect
from tests.helpers import (
    DEADLINE,
    ROOT,
    assert_same_bits,
    free_port,
    losses,
    newest_checkpoint,
    refusal,
    saved_state,
    start_python,
    wait_until,
)

STEPS = 12
RUN = {"mesh": "fsdp:2", "max_iters": STEPS, "eval_interval": 4, "eval_iters": 1, "dropout": 0.1}


def launch(argv, environments=({}, {}), program="train.py") -> list[subprocess.Popen]:
    """Start two processes of one device each; process i gets `argv(i)` and `environments[i]`."""
    return [start_python(program, *argv(i), JAX_NUM_CPU_DEVICES=1, **environments[i]) for i in range(2)]


def where(i: int, port: int) -> list[str]:
    return [f"--coordinator=127.0.0.1:{port}", "--num_processes=2", f"--process_id={i}"]


def launch_run(command_line: list[str]) -> list[subprocess.Popen]:
    port = free_port()
    # A name for W&B may have the time in it, as in nanoGPT's configs.
    return launch(lambda i: [*command_line, *where(i, port), f"--wandb_run_name=at-{i}"])


def ended(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Wait for the processes, and return status, stdout and stderr of each.

    In stdout, Gloo's words about its connections may be anywhere.
    """
    outputs = [process.communicate(timeout=DEADLINE) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def finished(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    results = ended(processes)
    assert [status for status, _, _ in results] == [0, 0], results
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def two(tiny, folder):
    """A run of two processes that nothing interrupted, started as SLURM's `srun` would: its folder."""
    port = str(free_port())
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_STEP_NUM_TASKS": "2", "JAX_COORDINATOR_PORT": port}
    ids = [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]
    words = tiny(folder / "two", **RUN, coordinator="auto")
    processes = launch(lambda i: words, environments=[slurm | mine for mine in ids])
    (_, first, _), (_, second, errors) = finished(processes)
    assert f"the last at iter {STEPS}" in first
    assert "iter" not in second + errors and "parameters" not in second  # only process 0 speaks
    return folder / "two"


@pytest.fixture(scope="module")
def one(tiny, folder):
    """The same run in this one process, on two of its devices."""
    train.main(tiny(folder / "one", **RUN))
    return folder / "one"


def test_two_processes_of_one_device_train_as_one_of_two_to_the_bit(one, two):
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}
    assert losses(one) == losses(two)
    assert_same_bits(saved_state(one, STEPS), saved_state(two, STEPS))


@pytest.mark.slow
def test_two_processes_evaluate_a_run_as_one_does(two, tmp_path):
    paths = tmp_path / "two.json", tmp_path / "one.json"
    arguments = [f"--out_dir={two}", "--mesh=fsdp:2", "--device=cpu"]
    port = free_port()
    processes = launch(lambda i: [*arguments, f"--json={paths[0]}", *where(i, port)], program="evaluate.py")
    (_, first, _), (_, second, _) = finished(processes)
    assert "bits per byte" in first and "bits per byte" not in second
    evaluate.main([*arguments, f"--json={paths[1]}"])
    ours, theirs = (json.loads(path.read_text()) for path in paths)
    assert ours["tokens"] == theirs["tokens"] == 299
    # A row's logits and loss are sums over devices, of a few terms, in another order, in each of two layers.
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=16 * 2**-24)


@pytest.mark.slow
def test_killed_both_they_go_on_to_the_same_bits(tiny, two, folder):
    out = folder / "killed"
    processes = launch_run(tiny(out, **RUN | {"max_iters": 100_000}))
    wait_until(lambda: newest_checkpoint(out) > 0, *processes)
    for process in processes:
        process.kill()
    assert [status for status, _, _ in ended(processes)] == [-signal.SIGKILL] * 2
    assert newest_checkpoint(out) < STEPS
    finished(launch_run(tiny(out, **RUN, init_from="resume")))
    assert_same_bits(saved_state(out, STEPS), saved_state(two, STEPS))
    assert losses(out) == losses(two)


@pytest.mark.slow
def test_a_signal_to_one_stops_both_and_a_lost_one_ends_the_other(tiny, folder):
    out = folder / "stopped"
    forever = RUN | {"max_iters": 100_000, "eval_interval": 100_000}
    processes = launch_run(tiny(out, **forever))
    wait_until(lambda: started(out) > 5, *processes)
    processes[1].send_signal(signal.SIGTERM)
    (status, printed, _), (other, _, _) = ended(processes)
    assert (status, other) == (143, 143)
    at = newest_checkpoint(out)
    assert f"stopped at iter {at}; resume with --out_dir={out} --init_from=resume" in printed
    assert started(out) == at - 1

    for lost, ending in ((1, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGKILL)):
        copy = shutil.copytree(out, folder / f"lost {lost} {ending}")
        processes = launch_run(tiny(copy, **forever, init_from="resume"))
        wait_until(lambda copy=copy: started(copy) > at + 5, *processes)
        processes[lost].send_signal(ending)
        errors = processes[1 - lost].communicate(timeout=DEADLINE)[1]
        processes[lost].kill()
        ended(processes[lost : lost + 1])
        status = processes[1 - lost].returncode
        assert status in (1, -signal.SIGABRT) and "Traceback" not in errors
        if (lost, ending) == (1, signal.SIGKILL):  # its connections close at once
            said = [text for text in errors.splitlines() if text.startswith("error: ")]
            assert len(said) == 1 and said[0].startswith("error: process 0: another process is gone")
        else:  # JAX misses its heartbeat, or process 0, and aborts the process with words of its own
            assert f"error: process {1 - lost}: another process is gone" in errors or "task died" in errors


SAVE_TWICE = """
import sys
import train
from runs.checkpoint import Checkpoints
save = Checkpoints.save
Checkpoints.save = lambda *args: (save(*args), save(*args))
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_without_a_shared_folder_process_0_saves_all_and_each_resumes_from_its_copy(tiny, tmp_path):
    """A run that stops right after it has saved does so again."""
    folders = [tmp_path / "0", tmp_path / "1"]

    def run(**options):
        port = free_port()
        words = tiny("out", **RUN | {"max_iters": 10} | options)
        processes = []
        for i, folder in enumerate(folders):
            folder.mkdir(exist_ok=True)
            of_one = dict(cwd=folder, PYTHONPATH=ROOT, JAX_NUM_CPU_DEVICES=1)
            processes.append(start_python("-c", SAVE_TWICE, *words, *where(i, port), **of_one))
        finished(processes)

    run(eval_interval=5)
    assert newest_checkpoint(folders[0] / "out") == 10 and newest_checkpoint(folders[1] / "out") == 0
    first = saved_state(folders[0] / "out", 10)
    shutil.rmtree(folders[0] / "out" / "checkpoints" / "10")
    shutil.copytree(folders[0] / "out", folders[1] / "out", dirs_exist_ok=True)
    run(eval_interval=5, init_from="resume")
    assert_same_bits(saved_state(folders[0] / "out", 10), first)


SLOW_DISK = """
import os, time
fsync = os.fsync
os.fsync = lambda file: (time.sleep(0.5), fsync(file))
"""


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0, 1])
def test_signals_to_a_process_that_saves_change_nothing_and_when_one_has_ended_all_have_saved(
    tiny, tmp_path, slow
):
    """As with `srun --kill-on-bad-exit`: SIGTERM to the others when one ends with 143, and soon SIGKILL."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK)
    port, environments = free_port(), [{}, {}]
    environments[slow] = {"PYTHONPATH": str(tmp_path)}
    words = tiny(tmp_path / "out", **RUN | {"max_iters": 10**6, "eval_interval": 10**6})
    processes = launch(lambda i: words + where(i, port), environments=environments)
    wait_until(lambda: started(tmp_path / "out") > 5, *processes)
    signalled = 0
    while all(process.poll() is None for process in processes):
        for process in processes:
            process.send_signal(signal.SIGTERM)
        signalled += 1
        time.sleep(0.05)
    for process in processes:
        process.kill()
    statuses = {status for status, _, _ in ended(processes)}
    assert 143 in statuses and statuses <= {143, -signal.SIGKILL} and signalled > 20
    assert saved_state(tmp_path / "out", at := newest_checkpoint(tmp_path / "out")) and at > 5


@pytest.mark.slow
def test_a_signal_to_one_stops_the_evaluation_of_both(tiny, tmp_path):
    """The evaluation would take hours; the run stops before its first step, and then takes it."""
    out = tmp_path / "out"
    endless = RUN | {"max_iters": 1, "eval_iters": 10**7}
    processes = launch_run(tiny(out, **endless))
    wait_until(lambda: (out / "options.json").exists(), *processes)
    time.sleep(5)  # most often it evaluates by now; if it compiles still, it must stop all the same
    processes[1].send_signal(signal.SIGTERM)
    (status, printed, _), (other, _, _) = ended(processes)
    assert (status, other) == (143, 143)
    assert "stopped at iter 0;" in printed and newest_checkpoint(out) == 0
    finished(launch_run(tiny(out, **endless | {"eval_iters": 1}, init_from="resume")))
    assert newest_checkpoint(out) == 1


def started(out: Path) -> int:
    """Return the iteration of the last record, which a run may be writing; 0 before it."""
    path = out / "metrics.jsonl"
    found = re.findall(r'"iter": (\d+),.*\n', path.read_text()) if path.exists() else []
    return int(found[-1]) if found else 0


@pytest.mark.slow
def test_processes_with_other_options_are_told_so(tiny, tmp_path):
    port = free_port()
    rates = (1e-2, 2e-2)
    processes = launch(lambda i: tiny(tmp_path / "out", **RUN, learning_rate=rates[i]) + where(i, port))
    for i, (status, _, errors) in enumerate(ended(processes)):
        assert status == 2 and "Traceback" not in errors
        assert f"error: process {i}: learning_rate is not the same in all processes" in errors
    assert not (tmp_path / "out").exists()


def test_processes_badly_described_are_refused():
    says = "give each one --coordinator=host:port, --num_processes and its --process_id"
    for words in (
        "--coordinator=localhost:1234",
        "--num_processes=2 --process_id=0",
        "--coordinator=a:1 --num_processes=2 --process_id=2",
        "--coordinator=auto --num_processes=2",
        "--coordinator=auto",
    ):
        assert says in refusal(lambda words=words: connect(parse_options(words.split())))
        assert not jax.distributed.is_initialized()


def test_a_second_ctrl_c_to_a_process_of_several_is_one_line(monkeypatch, capsys):
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    abort(KeyboardInterrupt())
    assert ended == [130] and capsys.readouterr().err == "error: process 0: interrupted\n"
