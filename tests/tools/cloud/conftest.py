"""Fixtures of the tests of launches at Modal: the real `modal` command, on a stand-in for Modal's servers."""

import asyncio
import shutil
import sys

import pytest

from tests.helpers import DEADLINE, LONG_RUN, ROOT, run_python
from tests.tools.cloud.modal_server import ModalServer

INTRUDERS = (".env", "notes.txt", "out/checkpoints/5/model", ".venv/lib/x.py", "data/python_char/train.bin")


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A copy of the project, with files that must not travel."""
    folder = tmp_path_factory.mktemp("project")
    left_out = shutil.ignore_patterns(
        ".git", ".*_cache", "*.bin", "__pycache__", "docs", "out*", "tests", "results"
    )
    shutil.copytree(ROOT, folder, ignore=left_out, dirs_exist_ok=True)
    for name in INTRUDERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("secret")
    return folder


@pytest.fixture
def at_modal(project, tmp_path, tiny_data):
    """`at_modal("run", "app.py", ...)`: exit status and output of that `modal` command, and the server.

    `meanwhile(server, running)` is awaited while the command runs.
    """
    volume, entries = tmp_path / "modal" / "volume", {}
    shutil.copytree(tiny_data, volume / "data" / "tiny")

    def modal(*words, meanwhile=None, cwd=project, **server):
        async def talk():
            async with ModalServer(tmp_path / "modal", entries, **server) as stand_in:
                command = [sys.executable, "-m", "modal", *words]
                running = asyncio.ensure_future(stand_in.command(command, cwd))
                if meanwhile is not None:
                    await asyncio.wait_for(meanwhile(stand_in, running), DEADLINE)
                return *await running, stand_in

        return asyncio.run(talk())

    modal.volume, modal.entries = volume, entries
    return modal


@pytest.fixture(scope="session")
def undisturbed(tiny, project, tmp_path_factory):
    """A long run here: its folder. Its weights are what a disturbed one must arrive at."""
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    done = run_python("app.py", *tiny(out, **LONG_RUN), cwd=project)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def trained(tiny, tiny_data, at_modal):
    """A run in the Volume, as one that was trained there leaves it."""
    out = at_modal.volume / "run"
    data = {"NANOJAXGPT_DATA": str(tiny_data.parent)}
    done = run_python("train.py", *tiny(out, dataset="tiny", mlp="gelu", bias=True), **data)
    assert done.returncode == 0, done.stderr
    return out
