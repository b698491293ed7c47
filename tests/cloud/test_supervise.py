"""supervise.run_script: a script's status and end as its caller learns them."""

import signal
import textwrap

import pytest

from cloud.supervise import run_script


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


def test_when_time_is_up_it_is_told_to_end(script):
    assert run_script(script("import time; time.sleep(100)"), [], seconds=0) == (-signal.SIGTERM, "time")
