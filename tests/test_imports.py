"""Imports go one way. ALLOWED is the order to read the project in: a folder imports only folders above it."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.helpers import ROOT, newest_checkpoint, run_python

# Each folder may import these folders of the project, and itself.
ALLOWED = {
    "config": set(),
    "layers": {"config"},
    "model": {"config", "layers"},
    "data": {"config"},
    "parallel": {"config", "data", "layers", "model"},
    "variants": {"layers", "model", "parallel"},
    "training": {"config", "data", "layers", "model", "parallel", "variants"},
    "generation": {"layers", "model"},
    "hub": {"config", "data", "model", "parallel", "variants"},  # formats: never runs, which loads them
    "runs": {"config", "data", "hub", "layers", "model", "parallel", "training"},
    # The tools: the core goes on without them, and without what follows.
    "tools.inside": {"layers", "model"},
    "tools.planning": {"config", "data", "layers", "model", "parallel", "runs", "training"},
    "tools.benchmarks": {
        *("config", "data", "generation", "layers", "model", "parallel", "runs", "training"),
        "tools.planning",
    },
    "tools.serving": {
        *("config", "data", "generation", "hub", "model", "parallel", "runs"),
        "tools.inside",
    },
    "experiments": {
        *("config", "data", "model", "parallel", "runs", "training"),
        *("tools.benchmarks", "tools.inside", "tools.planning"),
    },
    "tools.cloud": {"config", "data", "runs"},
}
# The figures of the pages look into every folder, and no folder into them.
ALLOWED["docs"] = set(ALLOWED)
# Users type these. Nobody imports them.
COMMANDS = {"train", "sample", "evaluate", "export", "bench", "plan", "serve", "app"}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the project with its folder; a command's is its own name."""
    for path in ROOT.glob("*.py"):
        yield path.stem, path
    for package in (*ROOT.glob("*/__init__.py"), *ROOT.glob("tools/*/__init__.py")):
        name = ".".join(package.parent.relative_to(ROOT).parts)
        for path in package.parent.rglob("*.py") if name != "tools" else ():
            yield name, path


def folder_of(module: str) -> str:
    """Return the folder of a module by its dotted name: one of the tools is a folder of its own."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "tools" else 1])


def forbidden(folder: str, source: str) -> set[str]:
    """Return the folders and commands that a module of `folder` with this source imports, and must not."""
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add("." * node.level + (node.module or ""))
    ours = {folder_of(name) for name in imported} & (ALLOWED.keys() | COMMANDS | {"", "tests"})
    allowed = ALLOWED.keys() if folder in COMMANDS else ALLOWED[folder] | {folder}
    # The launcher reads the options of the commands that it starts, to check them before it rents.
    return ours - allowed - (COMMANDS if folder == "app" else set())


def test_every_module_imports_only_what_its_folder_may():
    assert {folder for folder, _ in modules()} == ALLOWED.keys() | COMMANDS
    assert {path: bad for folder, path in modules() if (bad := forbidden(folder, path.read_text()))} == {}


def test_the_table_has_no_circle():
    above = set()
    for folder, allowed in ALLOWED.items():
        assert allowed <= above, folder
        above.add(folder)


def test_an_import_the_wrong_way_is_found():
    source = "import numpy, model as network\nfrom runs import load\n\ndef late():\n    from train import run"
    assert forbidden("hub", source) == {"runs", "train"}
    assert forbidden("runs", "from tools.planning import cost\nfrom .. import model") == {
        "tools.planning",
        "",
    }


def test_the_core_goes_on_without_the_rest(tiny, tmp_path):
    """In a copy without tools/, experiments/ and docs/, training, resuming and sampling run."""
    left_out = shutil.ignore_patterns("tools", "experiments", "docs", "tests", "*.bin", "out*", ".*")
    core = shutil.copytree(ROOT, tmp_path / "core", ignore=left_out)
    options = tiny(tmp_path / "out", eval_interval=2)
    for script, words in {
        "train.py": [*options, "--max_iters=2"],
        "./train.py": [*options, "--max_iters=4", "--init_from=resume"],
        "sample.py": [options[0], "--max_new_tokens=4", "--num_samples=1", "--device=cpu", "--start=the"],
    }.items():
        done = run_python(script, *words, cwd=core)
        assert done.returncode == 0, done.stderr
    assert newest_checkpoint(tmp_path / "out") == 4
