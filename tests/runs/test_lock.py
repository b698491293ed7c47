"""The lock of an out_dir: one run at a time, whoever holds it and however it ended."""

import fcntl
import json
from pathlib import Path

import pytest

import train
from runs import lock as module
from runs.load import load_run
from runs.lock import Lock, boot_id, locked
from tests.helpers import contents, newest_checkpoint, refusal, start_python, wait_until

HOLD = """
import sys, time
from runs.lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(1000)
"""


def take(folder):
    with locked(str(folder)):
        pass


def test_a_second_program_is_told_who_holds_it_and_since_when(tmp_path):
    holder = start_python("-c", HOLD, tmp_path)
    assert holder.stdout.readline() == "held\n"
    said = refusal(take, tmp_path)
    assert said.startswith(f"out_dir={tmp_path} is in use: process {holder.pid} on ")
    assert "since 2" in said and "another --out_dir" in said

    holder.kill()  # the kernel lets go
    holder.wait()
    take(tmp_path)


def test_no_trace_is_left(tmp_path):
    take(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    take(tmp_path / "old")
    assert contents(tmp_path) == {} and (tmp_path / "old").exists()


def test_it_is_free_again_after_an_error(tmp_path):
    with pytest.raises(RuntimeError), locked(str(tmp_path)):
        raise RuntimeError
    take(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert "choose another --out_dir" in refusal(take, tmp_path / "file" / "run")


@pytest.fixture
def impatient(monkeypatch):
    """Look for a second or two, not for twenty."""
    monkeypatch.setattr(module, "BEAT", 0.1)
    monkeypatch.setattr(module, "WATCH", 2)


def test_a_count_of_another_machine_that_goes_on_is_respected(tmp_path, impatient, monkeypatch):
    """Each look finds a higher count, as where the file system's locks end at the machine."""
    (tmp_path / "lock").write_text('{"boot": "another", "process": 7, "host": "there", "count": 3}')

    def sleep(seconds):
        holder = json.loads((tmp_path / "lock").read_text())
        (tmp_path / "lock").write_text(json.dumps(holder | {"count": holder["count"] + 1}))

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert "process 7 on there" in refusal(take, tmp_path)


@pytest.mark.parametrize("left", ["", "{", "[]", "null", "[" * 10_000, '{"boot": "another", "count": 3}'])
def test_a_count_that_stands_still_or_is_damaged_is_taken_over(tmp_path, impatient, left):
    (tmp_path / "lock").write_text(left)
    take(tmp_path)


def test_without_locks_of_the_kernel_the_count_decides(tmp_path, impatient, monkeypatch):
    def none(*arguments):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", none)
    first = Lock(tmp_path)
    first.acquire()
    assert json.loads((tmp_path / "lock").read_text())["boot"] == boot_id()
    assert "is in use" in refusal(take, tmp_path)
    first.release()
    take(tmp_path)


@pytest.mark.slow
def test_two_runs_do_not_share_an_out_dir_and_reading_beside_one_works(tmp_path, tiny):
    first = start_python("train.py", *tiny(tmp_path, max_iters=1_000_000, log_interval=1000))
    wait_until(lambda: Path(tmp_path / "checkpoints" / "5").exists(), first)
    for init_from in ("scratch", "resume", "auto"):
        said = refusal(train.main, tiny(tmp_path, init_from=init_from, max_iters=1_000_000))
        assert f"out_dir={tmp_path} is in use: process {first.pid}" in said
    train.main(tiny(tmp_path, init_from="resume", eval_only=True, max_iters=1_000_000))
    assert load_run(str(tmp_path))[2] >= 5
    first.kill()
    first.wait()
    newest = newest_checkpoint(tmp_path)
    train.main(tiny(tmp_path, init_from="auto", max_iters=newest + 1))
    assert not (tmp_path / "lock").exists()
