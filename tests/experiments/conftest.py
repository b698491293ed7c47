"""Shared by tests of experiments: a repository of the code as it is now, and steps timed for moments."""

import shutil
import subprocess

import pytest

from experiments import snapshot
from tests.helpers import ROOT
from tools.benchmarks import variants


def git(folder, *words) -> None:
    me = "-c", "user.name=Me", "-c", "user.email=me@example.org"
    subprocess.run(["git", "-C", folder, *me, *words], check=True, capture_output=True)


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A repository of the program as it is now: the tests may run in a copy that is none."""
    folder = tmp_path_factory.mktemp("clone") / "repository"
    left_out = shutil.ignore_patterns("docs", "tests", "results", "*.bin", "out*", ".*", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=left_out)
    (folder / ".gitignore").write_text("__pycache__\n")
    git(folder, "init", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--message=As it is")
    return folder


@pytest.fixture
def clone(repository, tmp_path, monkeypatch):
    """A copy of the repository to change, whose code the comparisons of the test take."""
    shutil.copytree(repository, tmp_path / "clone")
    monkeypatch.setattr(snapshot, "ROOT", tmp_path / "clone")
    return tmp_path / "clone"


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(variants, "BUDGET", 0.1)
    monkeypatch.setattr(variants, "BLOCK", 0.02)
