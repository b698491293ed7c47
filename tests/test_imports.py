"""Imports go one way. ALLOWED is the order to read the project in: a folder imports only folders above it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT

# Each folder may import these folders of the project, and itself.
ALLOWED = {
    "config": set(),
    "layers": {"config"},
    "model": {"layers"},
    "data": {"config"},
    "parallel": {"config", "data", "layers", "model"},
    "variants": {"layers", "model", "parallel"},
    "training": {"config", "layers", "model", "parallel", "variants"},
    "generation": {"layers", "model"},
    "inside": {"layers", "model"},
    "hub": {"config", "data", "model", "parallel", "variants"},  # formats: never runs, which loads them
    "evaluation": {"config", "data", "model", "parallel", "training"},
    "runs": {"config", "data", "hub", "layers", "model", "parallel", "training"},
    "benchmarks": {"config", "generation", "hub", "layers", "model", "parallel", "runs", "training"},
    "planning": {"config", "data", "generation", "model", "parallel", "runs", "training"},
    "serving": {"config", "data", "generation", "inside", "model", "runs"},
    "experiments": {
        "benchmarks",
        "config",
        "data",
        "inside",
        "model",
        "parallel",
        "runs",
        "training",
    },
    "cloud": {"config", "data", "experiments", "model", "runs"},
}
# The figures of the pages look into every folder, and no folder into them.
ALLOWED["docs"] = set(ALLOWED)
# Users type these. Nobody imports them.
COMMANDS = {"train", "sample", "evaluate", "export", "bench", "plan", "serve", "app"}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the project with its folder; a command's is its own name."""
    for path in ROOT.glob("*.py"):
        yield path.stem, path
    for package in ROOT.glob("*/__init__.py"):
        for path in package.parent.rglob("*.py"):
            yield package.parent.name, path


def forbidden(folder: str, source: str) -> set[str]:
    """Return the folders and commands that a module of `folder` with this source imports, and must not."""
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add("." * node.level + (node.module or ""))
    ours = {name.partition(".")[0] for name in imported} & (ALLOWED.keys() | COMMANDS | {"", "tests"})
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


@pytest.mark.parametrize(
    "folder, source, found",
    [
        ("hub", "from runs.load import load_run", {"runs"}),
        ("layers", "import numpy, model as network", {"model"}),
        ("training", "def late():\n    from train import run", {"train"}),
        ("data", "from .. import model", {""}),  # relative: no folder says where it leads
        ("runs", "from tests.helpers import records", {"tests"}),
        ("sample", "from generation import decode\nimport train", {"train"}),
        (
            "runs",
            "import jax\nfrom hub.weights import open_pretrained\nfrom runs.load import load_run",
            set(),
        ),
    ],
)
def test_an_import_the_wrong_way_is_found(folder, source, found):
    assert forbidden(folder, source) == found
