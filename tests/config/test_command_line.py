"""How a command starts and ends on other people's machines: an old Python, their variables, Ctrl-C, paths."""

import ast

import pytest
from packaging.requirements import Requirement

from tests.helpers import ROOT, error_line, run_python

COMMANDS = ["train", "sample", "serve", "evaluate", "export", "bench", "plan"]

OLD = """
import runpy, sys
sys.version_info = (3, 10, 13, "final", 0)
sys.modules |= dict.fromkeys(("jax", "numpy", "safetensors", "pydantic"))  # which that Python cannot install
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_an_old_python_is_one_line_in_words_that_it_can_parse(command):
    for name in (f"{command}.py", "config/__init__.py"):
        ast.parse((ROOT / name).read_text(), feature_version=(3, 9))
    done = run_python("-c", OLD, f"{command}.py")
    assert done.returncode and error_line(done.stderr).startswith("this Python is older than 3.11: ")


def test_pip_of_an_old_python_meets_a_file_first_whose_name_says_so():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    first = Requirement(next(line for line in lines if line and not line.startswith("#")))
    assert first.url == "file:///this-project-needs-Python-3.11-to-3.13.zip" and first.marker
    wanted = [first.marker.evaluate({"python_version": f"3.{minor}"}) for minor in (9, 10, 11, 12, 13)]
    assert wanted == [True, True, False, False, False]


# Stands for JAX: as it is loaded, a callback that collects garbage loses an exception.
INTERRUPTED = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
"""


@pytest.mark.parametrize("command", ["train", "sample", "evaluate", "bench", "plan"])
def test_ctrl_c_while_a_command_is_loaded_ends_it_quietly_with_status_130(command, tmp_path):
    (tmp_path / "jax.py").write_text(INTERRUPTED)
    done = run_python(f"{command}.py", PYTHONPATH=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


LOST = """
import signal, time
import runs.checkpoint
from config.command_line import command

class Callback:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def main(argv):
    Callback()
    time.sleep(60)
    print("went on")

command(main)
"""


def test_ctrl_c_that_a_callback_loses_comes_again():
    done = run_python("-c", LOST)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "variable, value",
    [
        ("JAX_ENABLE_X64", "maybe"),
        ("JAX_NUM_CPU_DEVICES", "abc"),
        ("EQX_ON_ERROR", "loudly"),
        ("JAXTYPING_DISABLE", "perhaps"),
    ],
)
def test_a_variable_that_a_library_cannot_read_is_one_line(variable, value):
    done = run_python("train.py", **{variable: value})
    said = error_line(done.stderr)
    assert done.returncode == 2 and variable.lower() in said.lower()
    assert said.endswith(": change or unset that environment variable")
