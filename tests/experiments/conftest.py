"""Shared by tests of experiments: options of a short run, and a repository of the code as it is now."""

import shutil
import subprocess

import pytest

from experiments import snapshot
from experiments.record import Result, machine
from tests.helpers import ROOT, flags

OPTIONS = dict(n_layer=1, n_head=1, n_embd=8, block_size=4, batch_size=2, gradient_accumulation_steps=1)
OPTIONS |= dict(learning_rate=0.01, warmup_iters=1, max_iters=6, lr_decay_iters=6, eval_iters=1)
OPTIONS |= dict(dtype="float32", device="cpu")


def words(**options) -> list[str]:
    return flags(OPTIONS, **options)


def result(seed, val, **changes) -> Result:
    """Return the result of a run that took a minute; with val None it diverged."""
    values = dict(seed=seed, val=val, diverged=None if val else 3, steps=6, seconds=60.0, data=None)
    return Result(**values | {"evaluations": [(6, val, val)] if val else []} | machine() | changes)


def git(folder, *command) -> None:
    me = "-c", "user.name=Me", "-c", "user.email=me@example.org"
    subprocess.run(["git", "-C", folder, *me, *command], check=True, capture_output=True)


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A repository of the program as it is now: the tests may run in a copy that is none."""
    folder = tmp_path_factory.mktemp("clone") / "repository"
    left_out = shutil.ignore_patterns("docs", "tests", "results", "*.bin", "out*", ".*", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=left_out)
    (folder / ".gitignore").write_text("__pycache__\n")
    for command in (["init", "--initial-branch=main"], ["add", "--all"], ["commit", "--message=As it is"]):
        git(folder, *command)
    return folder


@pytest.fixture
def clone(repository, tmp_path, monkeypatch):
    """A copy of the repository to change, whose code the comparisons of the test take."""
    shutil.copytree(repository, tmp_path / "clone")
    monkeypatch.setattr(snapshot, "ROOT", tmp_path / "clone")
    return tmp_path / "clone"
