"""A mutation check: change the program in one random place, and see whether the tests of that folder fail.

    python -m tests.mutants --count=50 --seed=1             the same seed draws the same mutants
    python -m tests.mutants --only=generation/ --count=5    of the files whose path begins so

A mutant that survives is a change of behaviour that no quick test notices, or none at all: read the line and
decide. The program is changed in a copy. A mutant takes as long as its tests, up to a few minutes.
"""

import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from common.command_line import Count, NonNegativeInt, take_options
from common.errors import UserError, command
from tests.helpers import ROOT

LIMIT = 900  # seconds for the tests of a mutant; one that takes longer hangs
PAIRS = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
]
SWAPS = dict(PAIRS) | {b: a for a, b in PAIRS} | {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult}
# The folders with tests of a file at the top.
FOLDERS = {"model": "model", "fast": "fast", "serve": "tools/serving", "bench": "tools/benchmarks"}
FOLDERS |= {"plan": "tools/planning", "app": "tools/cloud"}
# The tests of a command that are those of a folder, too.
COMMANDS = {"runs": ["tests/test_train.py"], "hub": ["tests/test_export.py"]}


@dataclass(frozen=True)
class MutantOptions:
    count: Count = 50
    seed: NonNegativeInt = 1
    only: str = ""


def main(argv: list[str]) -> int:
    values, rest = take_options(argv, MutantOptions)
    options = MutantOptions(**values)
    if rest:
        raise UserError(f"{rest[0]}: expected --count, --seed or --only")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = listed.stdout.splitlines()
    every = [
        (path, number, text)
        for path in tracked
        if is_program(path) and path.startswith(options.only)
        for number, text in enumerate(mutations(ast.parse((ROOT / path).read_text(encoding="utf-8"))))
    ]
    if not every:
        raise UserError(f"--only={options.only}: no file of the program begins so")
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    with tempfile.TemporaryDirectory() as folder:
        for path in tracked:
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, Path(folder) / path, follow_symlinks=False)
        killed = 0
        for path, number, text in drawn:
            kills = is_killed(path, number, Path(folder))
            killed += kills
            print(f"{'killed  ' if kills else 'SURVIVES'} {path}:{text}", flush=True)
    print(f"{killed} of {len(drawn)} mutants are killed")
    return 0


def is_program(path: str) -> bool:
    return path.endswith(".py") and not path.startswith(("tests/", "docs/", "config/train_", "."))


def mutations(tree: ast.Module) -> Iterator[str]:
    """Change a file in one place of a function after another, and say where. Each is undone before the next.

    A mutation is another operator or number, a condition negated, or a call left out. What stands outside
    functions is mostly tables, which tests would have to repeat.
    """
    functions = [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)]
    inside = {id(x): x for function in functions for x in behaviour(function)}  # a nested one's once
    for node in inside.values():
        for field, value in changes(node):
            original, before = getattr(node, field), ast.unparse(node)
            setattr(node, field, value)
            yield f"{node.lineno}: {before!r} becomes {ast.unparse(node)!r}"
            setattr(node, field, original)


def behaviour(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that decide what a program does: not annotations, nor what an error or a print says."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr, ast.arg, ast.Import, ast.ImportFrom)):
            continue
        if isinstance(child, ast.Call) and getattr(child.func, "id", "") == "print":
            continue
        if child is getattr(node, "annotation", None) or child is getattr(node, "returns", None):
            continue
        yield child
        yield from behaviour(child)


def changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a node to change, and their values."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield "ops", [SWAPS[type(op)]()]
        case ast.BinOp(op=op, left=left, right=right) if type(op) in SWAPS and not is_text(left, right):
            yield "op", SWAPS[type(op)]()
        case ast.BoolOp(op=op):
            yield "op", SWAPS[type(op)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.Constant(value=bool(value)):
            yield "value", not value
        case ast.Constant(value=int(value)):
            yield "value", value + 1
        case ast.Expr(value=ast.Call()):
            yield "value", ast.Constant(None)


def is_text(*nodes: ast.AST) -> bool:
    return any(isinstance(x, ast.JoinedStr) or isinstance(getattr(x, "value", 0), str) for x in nodes)


def is_killed(path: str, number: int, folder: Path) -> bool:
    """Run the tests on a mutant of a file, by its number."""
    original = (ROOT / path).read_text(encoding="utf-8")
    tree = ast.parse(original)
    next(islice(mutations(tree), number, None))  # which leaves the tree as it is then
    (folder / path).write_text(ast.unparse(tree), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-x", *tests_of(path)]
    try:
        return subprocess.run(words, cwd=folder, capture_output=True, timeout=LIMIT).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        (folder / path).write_text(original, encoding="utf-8")


def tests_of(path: str) -> list[str]:
    """Return the tests of a file of the program: its own, and then those of its folder."""
    file = Path(path)
    own = "tests" / file.parent / f"test_{file.name}"
    folder = "tests" / (file.parent if file.parent != Path() else Path(FOLDERS.get(file.stem, "")))
    near = next(x for x in (folder, *folder.parents) if (ROOT / x).is_dir())  # data/NAME's are data's
    command = COMMANDS.get(str(file.parent), [])
    return [str(own)] * (ROOT / own).exists() + command + [str(near)] * (near != Path("tests"))


if __name__ == "__main__":
    command(main)
