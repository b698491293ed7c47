"""The reference pages have every public module of the folders, or it is said here why not."""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

from docs.pages import DOCS, ROOT
from tests.test_imports import COMMANDS, modules

PAGES = sorted((DOCS / "reference").glob("*.md"))
LEFT_OUT = {
    "tools.benchmarks.*": "bench.py runs them, and docs/benchmarks.md is their page",
    "tools.planning.*": "plan.py calls them, and docs/planning.md is their page",
    "tools.serving.*": "programs talk to it over HTTP, as docs/serving.md says",
    "tools.cloud.*": "app.py calls them, and docs/cloud.md is their page",
    "docs.*": "they draw and check the pages",
    "data.*.prepare": "commands, each in the folder of its data set",
}
NAMES = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for _, path in modules()}
SHOWN = re.compile(r"^::: (?P<name>\S+)$(?:\n    options: \{ members: \[(?P<members>[^\]]*)\])?", re.M)


def public(path: Path) -> set[str]:
    """Return the names of a module's classes and functions, but for those with an underscore in front."""
    body = ast.parse(path.read_text()).body
    found = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in found if name[0] != "_"}


def test_every_public_module_of_a_folder_is_on_a_page_or_left_out_for_a_reason():
    on_pages = [shown["name"] for page in PAGES for shown in SHOWN.finditer(page.read_text())]
    assert len(on_pages) == len(set(on_pages))
    wanted = {NAMES[path] for folder, path in modules() if folder not in COMMANDS and public(path)}
    left_out = {name for name in wanted if any(fnmatch(name, pattern) for pattern in LEFT_OUT)}
    assert wanted - left_out - set(on_pages) == set()
    assert left_out & set(on_pages) == set()
    assert [pattern for pattern in LEFT_OUT if not any(fnmatch(name, pattern) for name in wanted)] == []
