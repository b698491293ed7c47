"""The code that a run trains with: a copy of the working tree as it is now, or of a commit.

One may go on editing while runs train. Two copies are the same code if train.py is the same program in both:
comments, layout and other files do not count.
"""

import ast
import os
import shlex
import subprocess
import tarfile
from dataclasses import dataclass
from hashlib import sha256
from modulefinder import ModuleFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common.errors import UserError
from common.files import refusing, write_whole

ROOT = Path(__file__).resolve().parents[1]
CODE = ("*.py", "*.csv")  # files that programs need


@dataclass(frozen=True)
class Snapshot:
    folder: Path
    name: str  # for people: the working tree, or the commit and its subject
    files: dict[str, str]  # a hash of each file that train.py imports, by its name


def take(commit: str, folder: Path) -> Snapshot:
    """Copy a commit into a folder below `folder`, or where it is empty the working tree. Raises UserError."""
    write_whole(folder / ".gitignore", "*\n")  # else a copy of the working tree would have the earlier copies
    with TemporaryDirectory(dir=folder.resolve()) as temporary:
        if commit:
            about = git("log", "-1", "--no-show-signature", "--format=%T%n%h: %s", full_hash(commit))
            tree, _, name = about.strip().partition("\n")
        else:
            index = {"GIT_INDEX_FILE": f"{temporary}/index"}  # the user's stays as it is
            git("read-tree", "HEAD", **index)
            git("add", "--all", *CODE, **index)
            tree, name = git("write-tree", **index).strip(), "the working tree"
        copy, archive = Path(temporary, "code"), Path(temporary, "archive")
        git("archive", f"--output={archive}", tree, *CODE)
        with refusing("the code to compare cannot be copied", "take the link away", tarfile.TarError):
            tar = tarfile.open(archive)
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # None before Python 3.11.4
            tar.extractall(copy)
        found = Snapshot(folder / tree[:12], name, program(copy))  # by all files: configs are not imported
        if found.folder.exists():  # it may have been edited
            found.folder.rename(Path(temporary, "earlier"))
        copy.rename(found.folder)
    return found


def split_commit(words: list[str]) -> tuple[str, list[str]]:
    """Return the commit that is named as git:COMMIT, or "" for the working tree, and the other words."""
    commit = "".join(word.removeprefix("git:") for word in words if word.startswith("git:"))
    return commit, [word for word in words if not word.startswith("git:")]


def full_hash(commit: str) -> str:
    return git("rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}").strip()


def git(*words: str, **environment: str) -> str:
    env = os.environ | {"LC_ALL": "C"} | environment
    made = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, env=env)
    if made.returncode:
        why = made.stderr.decode(errors="replace").strip().split("\n")[0].removeprefix("fatal: ")
        advice = "give git: and a commit that this clone has"
        if "not a git repository" in why:
            advice = "this needs the history: git clone the project, or git init and commit it"
        elif "dubious ownership" in why:
            advice = f"git config --global --add safe.directory {shlex.quote(str(ROOT))}"
        raise UserError(f"git {words[0]} {words[-1]}: {why}: {advice}")
    return made.stdout.decode(errors="replace")


def program(folder: Path) -> dict[str, str]:
    """Return a hash of each file that train.py may import. Raises UserError."""
    with refusing("the code to compare cannot be read", "mend it", SyntaxError, ValueError, OSError):
        finder = ModuleFinder([str(folder)])
        finder.run_script(str(folder / "train.py"))
        paths = sorted(Path(x.__file__) for x in finder.modules.values() if x.__file__)  # ty: ignore
        trees = {str(path.relative_to(folder)): ast.parse(path.read_bytes()) for path in paths}
        return {name: digest(ast.dump(tree)) for name, tree in trees.items()}


def digest(what: Any) -> str:
    return sha256(repr(what).encode()).hexdigest()[:12]
