"""What Windows and macOS lack: the programs train, sample and serve without it.

Neither system is here. Each test hides from the project, and from nobody else, what one of them lacks.
"""

import subprocess
import sys

import pytest

from tests.helpers import ROOT

HIDE = """
import builtins, os, runpy, signal, sys

class Without:
    def __init__(self, module, names, **instead):
        self.__dict__ = {"module": module, "names": names, **instead}

    def __getattr__(self, name):
        if name in self.names:
            raise AttributeError(f"module {self.module.__name__!r} has no attribute {name!r}")
        return getattr(self.module, name)

def open_number(path, *rest, **options):
    if os.path.isdir(path):  # Windows opens no folder
        raise PermissionError(13, "Permission denied", str(path))
    return os.open(path, *rest, **options)

LESS = {
    "os": Without(os, {"sysconf", "O_NOFOLLOW", "O_NONBLOCK", "getuid"}, open=open_number),
    "signal": Without(signal, {"SIGHUP", "SIGKILL", "pthread_kill", "setitimer"}),
}
genuine, open_genuine, ours = builtins.__import__, builtins.open, os.getcwd() + os.sep

def import_(name, globals=None, *rest, **options):
    if str((globals or {}).get("__file__", "")).startswith(ours):
        if name in ("fcntl", "resource"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return LESS.get(name) or genuine(name, globals, *rest, **options)
    return genuine(name, globals, *rest, **options)

def open_(path, *rest, **options):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return open_genuine(path, *rest, **options)

builtins.__import__, builtins.open = import_, open_
sys.path.insert(0, ours)
"""


def run(program: str, *words: str) -> str:
    path = str(ROOT / program)
    code = f"{HIDE}\nsys.argv = {[program, *words]}\nrunpy.run_path({path!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quickstart_trains_resumes_and_samples_there(tiny, tmp_path):
    out = f"--out_dir={tmp_path}"
    run("train.py", "config/quickstart.py", *tiny(tmp_path, max_iters=2))
    resumed = run("train.py", out, "--init_from=resume", "--max_iters=3")
    assert "iter 3" in resumed
    assert run("sample.py", out, "--start=the", "--num_samples=1", "--max_new_tokens=5").strip()


@pytest.mark.parametrize("module", ["serve", "evaluate", "export", "app"])
def test_a_command_can_be_imported_there(module):
    done = subprocess.run(
        [sys.executable, "-c", f"{HIDE}\nimport {module}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
