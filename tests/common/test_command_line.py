"""How a command starts and ends on other people's machines: an old Python, their variables, Ctrl-C, paths."""

import ast
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from common.files import cache_folder
from config.options import parse_options
from tests.helpers import ROOT, error_line, refusal, run_python

COMMANDS = ["train", "sample", "serve", "evaluate", "export", "bench", "plan"]

OLD = """
import runpy, sys
sys.version_info = (3, 10, 13, "final", 0)
sys.modules |= dict.fromkeys(("jax", "numpy", "safetensors", "pydantic"))  # which that Python cannot install
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_an_old_python_is_one_line_in_words_that_it_can_parse(command):
    for name in (f"{command}.py", "common/errors.py"):
        ast.parse((ROOT / name).read_text(), feature_version=(3, 9))
    done = run_python("-c", OLD, f"{command}.py")
    assert done.returncode and error_line(done.stderr).startswith("this Python is older than 3.11: ")


# Stands for JAX: as it is loaded, a callback that collects garbage loses an exception.
INTERRUPTED = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
"""


@pytest.mark.parametrize("command", ["train", "sample", "evaluate", "bench", "plan"])
def test_ctrl_c_while_a_command_is_loaded_ends_it_quietly(command, tmp_path):
    (tmp_path / "jax.py").write_text(INTERRUPTED)
    done = run_python(f"{command}.py", PYTHONPATH=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")  # a shell's 130


LOST = """
import signal, time
from common.errors import command

class Callback:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def main(argv):
    Callback()
    for _ in range(600):
        time.sleep(0.1)
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


PRINT = "from common.errors import command; command(lambda argv: print('text', flush={}))"


@pytest.mark.parametrize("flush", [False, True])
def test_a_full_disk_below_stdout_is_one_line(flush):
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-c", PRINT.format(flush)]
        done = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr == "error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("error", ["UserError('why')", "OSError(5, 'why')", "MemoryError('why')"])
def test_to_debug_a_command_shows_where_an_error_came_from(error):
    program = f"""
from common.errors import UserError, command
def fail(argv):
    try:
        raise KeyError("the first of all")
    except KeyError:
        raise {error} from None
command(fail)
"""
    assert "why" in error_line(run_python("-c", program).stderr)
    shown = run_python("-c", program, NANOJAXGPT_DEBUG=1)
    assert shown.returncode == 2 and "the first of all" in shown.stderr and "in fail" in shown.stderr


def test_an_unexpected_error_ends_with_2_and_shows_where():
    """1 is an answer of experiments.compare: "no difference"."""
    done = run_python("-c", "from common.errors import command; command(lambda argv: {}['it'])")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("Traceback") and done.stderr.endswith("\nKeyError: 'it'\n")


@pytest.mark.parametrize("columns", ["1", "5"])
def test_help_ends_however_narrow_the_terminal_is(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as ended:
        parse_options(["--help"])
    assert not ended.value.code and "--block_size" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["out_dir", "init_from", "dataset"])
def test_a_path_may_begin_with_the_home_folder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (config := tmp_path / "config.py").write_text(f"{name} = '~/runs/b'")
    for words, path in {
        (f"--{name}=~/runs/a",): "runs/a",
        (f"--{name}", "~"): "",
        (str(config),): "runs/b",
    }.items():
        options = parse_options(list(words), lambda name: {})
        assert Path(getattr(options, name)) == tmp_path / path
    assert parse_options([f"--{name}=a~b/~"], lambda name: {}).__dict__[name] == "a~b/~"


def test_without_a_home_folder_none_called_tilde_is_made(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # the system does not know this user
    for path in ("~", "~/runs/a"):
        assert "out_dir" in refusal(parse_options, [f"--out_dir={path}"])
    for kept in ("", "~/.cache", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", kept)
        with pytest.raises(OSError):
            cache_folder().mkdir(parents=True)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_checkpoints_cannot_have_is_refused_at_the_start():
    assert "expected a name in UTF-8" in refusal(parse_options, ["--out_dir=caf\udce9"])


@pytest.mark.parametrize("place", ["gs://bucket/run", "s3://bucket", "hf://me/run", "gs:/bucket"])
@pytest.mark.parametrize(
    "program, option", [("train", "out_dir"), ("sample", "out_dir"), ("export", "to"), ("bench", "json")]
)
def test_a_bucket_is_refused_at_the_start(program, option, place):
    said = refusal(import_module(program).main, [f"--{option}={place}"])
    assert said == f"--{option} is '{place}': expected a path of this machine, as of a mounted bucket"
