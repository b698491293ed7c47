"""process.run_command: a script's status and end as its caller learns them."""

import os
import signal
import textwrap
from unittest.mock import Mock

import pytest

from tools.cloud.process import run_command


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_status_arguments_and_folder(script):
    path = script("import sys; sys.exit(3 if sys.argv[1:] == ['a', 'b'] else 4)")
    assert run_command([path, "a", "b"]) == (3, False)
    path = script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run_command([path]) == (-signal.SIGKILL, False)


def test_sigint_reaches_it_as_one_sigterm(script):
    """Also if it gets the SIGINT itself, as from a terminal."""
    path = script("""
        import os, signal, sys, time
        got = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: got.append(number))
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getppid(), signal.SIGINT)
        while signal.SIGTERM not in got:
            time.sleep(0.01)
        sys.exit(7 if got == [signal.SIGTERM] else 8)
    """)
    assert run_command([path]) == (7, True)


class Cancelled(BaseException):
    """As Modal's, by which its client cancels an input."""


@pytest.mark.parametrize("saves", [True, False])
def test_any_exception_ends_the_script_when_it_has_saved(script, tmp_path, monkeypatch, saves):
    monkeypatch.setattr("tools.cloud.process.PATIENCE", 20 if saves else 0.1)
    path = script(f"""
        import os, pathlib, signal, sys, time
        def save(number, frame):
            if {saves}:
                pathlib.Path("saved").touch()
                sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        pathlib.Path("pid").write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGUSR1)
        while True:
            time.sleep(1)
    """)

    signal.signal(signal.SIGUSR1, Mock(side_effect=Cancelled))
    with pytest.raises(Cancelled):
        run_command([path])
    assert (tmp_path / "saved").exists() == saves

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_when_time_is_up_it_is_told_to_end(script):
    assert run_command([script("import time; time.sleep(100)")], seconds=0) == (-signal.SIGTERM, False)
