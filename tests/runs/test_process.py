"""The lock of an out_dir: one run at a time, whoever holds it and however it ended."""

import errno
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from runs.process import locked, stop_signals
from tests.helpers import contents, refusal, start_python

HOLD = """
import sys, time
from runs.process import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(1000)
"""

SAY = """
import signal, sys
from runs.process import say, stop_signals
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # or it is ignored, under nohup
with stop_signals() as stop_asked:
    while not stop_asked():
        say("line")
    sys.exit(stop_asked())
"""


def take(folder):
    with locked(str(folder)):
        pass


def test_a_second_program_is_refused_until_the_first_ends_and_what_killed_saves_left_is_removed(tmp_path):
    whole, unfinished = (tmp_path / "checkpoints" / name for name in ("0", "10.orbax-checkpoint-tmp"))
    for folder in (whole, unfinished):
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "array").write_text("large")
    holder = start_python("-c", HOLD, tmp_path)
    assert holder.stdout.readline() == "held\n"
    assert list(whole.parent.iterdir()) == [whole]
    unfinished.mkdir()  # by the run that holds it
    assert refusal(take, tmp_path).startswith(f"out_dir={tmp_path} is in use by another run: choose another")
    assert unfinished.exists() and (whole / "model" / "array").exists()
    holder.kill()  # the kernel lets go
    holder.wait()
    take(tmp_path)


def test_no_trace_is_left_even_after_an_error(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    for name in ("new", "old"):
        with pytest.raises(RuntimeError), locked(str(tmp_path / name)):
            raise RuntimeError
    assert contents(tmp_path) == {"old/file": b""} and not (tmp_path / "new").exists()


def test_where_a_run_could_not_save_it_does_not_start(tmp_path):
    """/proc/sys stands for a folder that nobody may write to, root included."""
    for name, make in {"file": Path.touch, "read-only": lambda path: path.symlink_to("/proc/sys")}.items():
        (tmp_path / name).mkdir()
        make(checkpoints := tmp_path / name / "checkpoints")
        assert refusal(take, tmp_path / name).startswith(f"{checkpoints}")
    (tmp_path / "in the way").touch()
    assert refusal(take, tmp_path / "in the way" / "run") == f"{tmp_path}/in the way/run: Not a directory"


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_a_link_in_place_of_the_lock_changes_nothing_elsewhere(tmp_path, make):
    (outside := tmp_path / "outside").write_text("kept")
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / "lock", outside)
    if make is Path.symlink_to:
        assert str(tmp_path / "run" / "lock") in refusal(take, tmp_path / "run")
    else:
        take(tmp_path / "run")
    assert outside.read_text() == "kept"


def test_where_the_file_system_has_no_locks_the_run_is_told_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOTSUP, "no locks here")))
    take(tmp_path)
    assert f"note: {tmp_path}: this file system has no locks" in capsys.readouterr().err


def test_a_ctrl_c_that_the_shell_has_it_ignore_does_not_stop_a_run():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script does for what it starts with `&`
    try:
        with stop_signals() as stop_asked:
            signal.raise_signal(signal.SIGINT)
            assert stop_asked() == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reader_that_has_closed_stops_a_run_as_a_closed_terminal_does():
    """`tee` ends at the Ctrl-C that stops a run, which has yet to print and to save."""
    process = start_python("-c", SAY)
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.wait() == 128 + signal.SIGHUP
