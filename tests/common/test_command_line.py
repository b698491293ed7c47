"""How a command starts and ends on other people's machines: an old Python, their variables, Ctrl-C, paths."""

import ast
import io
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from unittest.mock import Mock

import pytest

from common.errors import UserError, command
from common.files import cache_folder
from config.options import Options, parse_options
from tests.helpers import ROOT, error_line, refusal, run_python

COMMANDS = ["train.py", "rl.py", "sample.py", "serve.py", "evaluate.py", "export.py", "bench.py", "plan.py"]

OLD = """
import runpy, sys
sys.version_info = (3, 10, 13, "final", 0)
sys.modules |= dict.fromkeys(("jax", "numpy", "safetensors", "pydantic"))  # which that Python cannot install
for name in sys.argv[1:]:
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as ended:
        print(ended)
"""


def test_an_old_python_is_one_line_in_words_that_it_can_parse():
    for name in (*COMMANDS, "common/errors.py"):
        ast.parse((ROOT / name).read_text(), feature_version=(3, 9))
    done = run_python("-c", OLD, *COMMANDS)
    lines = done.stdout.splitlines()
    assert len(lines) == len(COMMANDS), done.stderr
    assert all(line.startswith("error: this Python is older than 3.11: ") for line in lines)


# Stands for JAX: as it is loaded, a callback that collects garbage loses an exception.
INTERRUPTED = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
"""


def test_ctrl_c_while_a_command_is_loaded_ends_it_quietly(tmp_path):
    (tmp_path / "jax.py").write_text(INTERRUPTED)
    done = run_python("train.py", PYTHONPATH=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")  # a shell's 130


def test_ctrl_c_that_a_callback_loses_comes_again():
    done = run_python(
        "-c",
        "import signal, time; from common.errors import command\n"
        "class Callback:\n"
        "  def __del__(self): signal.raise_signal(signal.SIGINT)\n"
        "def main(argv):\n"
        "  Callback()\n"
        "  for _ in range(600): time.sleep(0.1)\n"
        "  print('went on')\n"
        "command(main)",
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_ends_a_command_quietly_with_status_130():
    """A thread that works on does not hold it up, and what was written is not lost."""
    done = run_python(
        "-c",
        "import sys, threading, time; from common.errors import command\n"
        "def interrupted(argv):\n"
        "  threading.Thread(target=time.sleep, args=(3600,)).start()\n"
        "  sys.stdout.write('text')\n"
        "  raise KeyboardInterrupt\n"
        "command(interrupted)",
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "text", "")


def test_a_variable_that_a_library_cannot_read_is_one_line():
    done = run_python("train.py", JAX_ENABLE_X64="maybe")
    said = error_line(done.stderr)
    assert done.returncode == 2 and "jax_enable_x64" in said.lower()
    assert said.endswith(": change or unset that environment variable")


@pytest.mark.parametrize("flush", [False, True])
def test_a_full_disk_below_stdout_is_one_line(flush):
    program = f"from common.errors import command; command(lambda argv: print('text', flush={flush}))"
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr == "error: [Errno 28] No space left on device\n"


def test_what_is_printed_to_a_closed_stream_lands_in_no_file(tmp_path):
    program = (
        "import os; from common.errors import command\n"
        "def main(argv):\n"
        "  with open(argv[0], 'w') as file:\n"
        "    print('lost', flush=True)\n"
        "    os.write(2, b'lost')\n"
        "    file.write('kept')\n"
        "command(main)"
    )
    words = shlex.join([sys.executable, "-c", program, str(tmp_path / "file")])
    assert subprocess.run(["bash", "-c", f"{words} >&- 2>&-"], cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    "encoding, errors, text",
    [("ascii", "strict", "n\u00e9"), ("utf-8", "strict", "n\udcff"), ("ascii", "surrogateescape", "n\u00e9")],
)
def test_text_that_a_terminal_cannot_show_is_written_all_the_same(encoding, errors, text, monkeypatch):
    """As a token may be: a byte that is not UTF-8 becomes half a character."""
    terminal = io.TextIOWrapper(written := io.BytesIO(), encoding, errors)
    monkeypatch.setattr(sys, "stdout", terminal)
    command(lambda argv: print(text))
    assert written.getvalue() == b"n?\n"


@pytest.mark.parametrize("error", [UserError("why"), OSError(5, "why"), MemoryError("why")])
def test_to_debug_a_command_shows_where_an_error_came_from(error, monkeypatch, capsys):
    def fail(argv):
        try:
            raise KeyError("the first of all")
        except KeyError:
            raise error from None

    assert "why" in refusal(fail, [])
    monkeypatch.setenv("NANOJAXGPT_DEBUG", "1")
    with pytest.raises(SystemExit, match="2"):
        command(fail)
    shown = capsys.readouterr().err
    assert "the first of all" in shown and "in fail" in shown


def test_an_unexpected_error_ends_with_2_and_shows_where(capsys):
    """1 is an answer of experiments.compare: "no difference"."""
    with pytest.raises(SystemExit, match="2"):
        command(lambda argv: {}["it"])
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback") and shown.endswith("\nKeyError: 'it'\n")


@pytest.mark.parametrize("name", ["out_dir", "init_from", "dataset"])
def test_a_path_may_begin_with_the_home_folder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (config := tmp_path / "config.py").write_text(f"{name} = '~/runs'")
    for word, path in {f"--{name}=~/a": tmp_path / "a", str(config): tmp_path / "runs"}.items():
        assert vars(parse_options([word], lambda name: {}))[name] == str(path)
    assert vars(parse_options([f"--{name}=a~b/~"], lambda name: {}))[name] == "a~b/~"


def test_a_config_may_use_the_options_before_it_as_nanogpts_do(tmp_path):
    (config := tmp_path / "config.py").write_text("lr_decay_iters = max_iters")
    words = ["--max_iters=100", str(config), "--max_iters=200"]
    found = parse_options(words[:2]), parse_options(words), parse_options(words[1:])
    assert [x.lr_decay_iters for x in found] == [100, 100, Options.max_iters]


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


def test_a_bucket_is_refused_at_the_start():
    for program, option, place in (("train", "out_dir", "gs://bucket/run"), ("bench", "json", "gs:/bucket")):
        said = refusal(import_module(program).main, [f"--{option}={place}"])
        assert said == f"--{option} is '{place}': expected a path of this machine, as of a mounted bucket"
    assert parse_options([f"--out_dir={(path := 'c:/out')}"]).out_dir == path  # a drive of Windows is none


def test_a_full_disk_is_not_taken_for_too_little_memory():
    said = "run: cannot be written (RESOURCE_EXHAUSTED: No space left on device): mend that"
    assert refusal(Mock(side_effect=UserError(said))) == said
    assert "too little memory" in refusal(Mock(side_effect=RuntimeError("RESOURCE_EXHAUSTED: 5 GB")))
