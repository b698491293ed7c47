"""The code that runs train with: the working tree's or a commit's, as it was when it was taken."""

import json
import subprocess

import pytest

from experiments import snapshot
from experiments.snapshot import Snapshot, take
from tests.experiments.conftest import git, words
from tests.helpers import refusal, start_python, wait_until


def edit(path, old, new) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def changed(a: Snapshot, b: Snapshot) -> set[str]:
    return {name for name, _ in a.files.items() ^ b.files.items()}


def test_code_is_the_same_while_train_py_is_the_same_program(clone):
    """The copies lie in the working tree, and .gitignore does not name them: a copy has no earlier copies."""
    folder = clone / "mine" / "code"
    first = take("", folder)
    edit(clone / "model.py", "import math\n", "import math  # for its functions\n\n")
    edit(clone / "config" / "quickstart.py", "n_layer = 4", "n_layer = 5")
    edit(clone / "sample.py", "import", "import html\nimport")
    second = take("", folder)
    assert {"train.py", "model.py", "training/step.py"} < first.files.keys() and not changed(first, second)
    for code, layers in ((first, 4), (second, 5)):  # a config is read in the code that was taken
        assert f"n_layer = {layers}\n" in (code.folder / "config" / "quickstart.py").read_text()
    edit(clone / "model.py", "import math", "import math\n\nimport new")
    (clone / "new.py").write_text("x = 1\n")
    third = take("", folder)
    assert changed(second, third) == {"model.py", "new.py"} and not (third.folder / "mine").exists()
    status = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True)
    assert "?? new.py" in status.stdout  # the user's index is as it was


@pytest.fixture
def idea(clone):
    """The clone, with a branch that has another model and another option."""
    git(clone, "checkout", "-b", "idea")
    edit(clone / "config" / "options.py", "    grad_clip: ", "    sharpness: Positive = 1.0\n    grad_clip: ")
    edit(clone / "model.py", "0.02 * jax.random.normal(wte_key", "0.04 * jax.random.normal(wte_key")
    git(clone, "commit", "--all", "--message=Larger embeddings")
    git(clone, "checkout", "main")
    return clone


def test_a_commit_is_taken_as_it_is_and_one_that_is_none_is_refused(idea, tmp_path, monkeypatch):
    ours, theirs = take("", tmp_path / "code"), take("idea", tmp_path / "code")
    assert ours.name == "the working tree" and theirs.name.endswith(": Larger embeddings")
    assert changed(ours, theirs) == {"config/options.py", "model.py"}
    assert "0.04 * jax" in (theirs.folder / "model.py").read_text()
    output = f"--output={tmp_path / 'x'}"
    for name in ("nowhere", "HEAD:train.py", "main..idea", "^main", "-p", "--all", output):
        assert ": give git: and a commit" in refusal(take, name, tmp_path / "code")
    assert not (tmp_path / "x").exists() and not (tmp_path / "x^{commit}").exists()
    edit(idea / "train.py", "import nullcontext\n", "import nullcontext as\n")
    assert "the code to compare cannot be read (invalid syntax" in refusal(take, "", tmp_path / "code")
    monkeypatch.setattr(snapshot, "ROOT", tmp_path)
    assert refusal(take, "", tmp_path / "code").endswith(": git clone the project, or git init and commit it")


def test_a_copy_that_was_edited_is_replaced(clone, tmp_path, monkeypatch):
    with monkeypatch.context() as old:  # as in Python 3.11.2 of Debian 12
        old.delattr("tarfile.data_filter")
        code = take("", tmp_path / "code")
    for name in ("model.py", "numpy.py", "common/devices.csv"):
        (code.folder / name).write_text("edited\n")
    assert take("", tmp_path / "code") == code and not (code.folder / "numpy.py").exists()
    for name in ("model.py", "common/devices.csv"):
        assert (code.folder / name).read_bytes() == (clone / name).read_bytes()
    (clone / "outside.py").symlink_to("/etc/passwd")
    assert "the code to compare cannot be copied ('outside.py' " in refusal(take, "", tmp_path / "code")


SOON = """
from common.errors import command
from experiments import compare, runner

runner.TURNS, runner.SECONDS = 2, 0.1
command(compare.main)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_branch_has_its_own_options_and_no_edit_reaches_what_is_under_way(idea, tmp_path, tiny_data):
    argv = [*words(dataset=tiny_data), "--change=git:idea --sharpness=2.5", f"--out={tmp_path / 'out'}"]
    process = start_python("-c", SOON, *argv, "--seeds=2", "--json", cwd=idea)
    wait_until(lambda: any(tmp_path.glob("out/runs/*")), process)
    for name in ("train.py", "model.py"):
        (idea / name).write_text("raise SystemExit(5)\n")
    printed, err = process.communicate()
    (change,) = json.loads(printed)["changes"]
    assert process.returncode in (0, 1, 3) and len(change["pairs"]) == 2 and all(change["pairs"])
    assert "code of the working tree\n" in err and ": Larger embeddings:\n" in err
    assert "    sharpness: None becomes 2.5\n" in err
    assert "    differs in config/options.py, model.py\n" in err
