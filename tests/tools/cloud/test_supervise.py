"""supervise.run_script: a script's status and end as its caller learns them."""

import contextlib
import os
import signal
import textwrap
import threading
from pathlib import Path

import pytest

from tools.cloud.supervise import run_script


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_status_arguments_and_folder(script, tmp_path):
    path = script("""
        import pathlib, sys
        pathlib.Path("said").write_text(" ".join(sys.argv[1:]))
        sys.exit(3)
    """)
    (tmp_path / "elsewhere").mkdir()
    assert run_script(path, ["a", "b"], tmp_path / "elsewhere") == (3, None)
    assert (tmp_path / "elsewhere" / "said").read_text() == "a b"


def test_a_signal_that_kills_is_negative(script):
    path = script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run_script(path, []) == (-signal.SIGKILL, None)


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
    assert run_script(path, []) == (7, "interrupt")


class Cancelled(BaseException):
    """As Modal's, by which its client cancels an input."""


@pytest.fixture
def cancelled():
    """Have SIGUSR1 raise Cancelled, as Modal's client has it."""

    def cancel(number, frame):
        raise Cancelled

    before = signal.signal(signal.SIGUSR1, cancel)
    yield
    signal.signal(signal.SIGUSR1, before)


def running(path: str) -> list[str]:
    """The processes that run the script at this path."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [command.parent.name] if path in command.read_text() else []
    return found


def test_any_exception_ends_the_script_when_it_has_saved(script, tmp_path, cancelled):
    path = script(f"""
        import os, pathlib, signal, sys, time
        def save(number, frame):
            pathlib.Path({str(tmp_path / "saved")!r}).touch()
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(60)
    """)
    with pytest.raises(Cancelled):
        run_script(path, [])
    assert (tmp_path / "saved").exists() and not running(path)


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 8, 21])
def test_no_script_outlives_an_exception_whenever_it_comes(script, cancelled, milliseconds):
    path = script("import time; time.sleep(60)")
    with pytest.raises(Cancelled):
        threading.Timer(milliseconds / 1000, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        run_script(path, [])
    assert not running(path)


def test_when_time_is_up_it_is_told_to_end(script):
    assert run_script(script("import time; time.sleep(100)"), [], seconds=0) == (-signal.SIGTERM, "time")
