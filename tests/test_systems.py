"""What Windows and macOS lack: the programs train, sample and serve without it.

Neither system is here. Each test hides from the project, and from nobody else, what one of them lacks.
"""

from tests.helpers import run_python

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


RUN = """
for name, *words in commands:
    sys.argv = [name, *words]
    print("====")
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
import serve, evaluate, export, app
"""


def test_the_quickstart_trains_resumes_and_samples_there_and_other_commands_can_be_imported(tiny, tmp_path):
    out = f"--out_dir={tmp_path}"
    train = ["train.py", "config/quickstart.py", *tiny(tmp_path, n_layer=1, max_iters=2, eval_iters=1)]
    resume = ["train.py", out, "--init_from=resume", "--max_iters=3"]
    sample = ["sample.py", out, "--start=the", "--num_samples=1", "--max_new_tokens=5"]
    done = run_python("-c", f"{HIDE}\ncommands = {[train, resume, sample]}\n{RUN}")
    assert done.returncode == 0, done.stderr
    _, _, resumed, sampled = done.stdout.split("====\n")
    assert "iter 3" in resumed and sampled.strip()
