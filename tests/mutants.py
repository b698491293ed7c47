"""A mutation check: change the program in one random place, and see whether the tests of that folder fail.

    python -m tests.mutants --count=50 --seed=1             the same seed draws the same mutants
    python -m tests.mutants --only=generation/ --count=5    of the files whose path begins so

A mutant that survives is a change of behaviour that no quick test notices, or none at all: read the line and
decide. The program is changed in a copy. A mutant takes as long as its tests, up to a few minutes.
"""

import ast
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from config.command_line import Count, NonNegativeInt, UserError, command, split_options

Span = Callable[[ast.AST], tuple[int, int]]  # the bytes of a file that a node has
ROOT = Path(__file__).resolve().parents[1]
LIMIT = 900  # seconds for the tests of a mutant; one that takes longer hangs
SWAPS = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "and": "or", "or": "and"},
    **{"in": "not in", "not in": "in", "is": "is not", "is not": "is"},
    **{"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*"},
}
OPERATOR = re.compile(r"<<|>>|<=|>=|==|!=|//|\*\*|not\s+in|is\s+not|in|is|and|or|[<>+\-*/%@&|^]")


@dataclass(frozen=True)
class MutantOptions:
    count: Count = 50
    seed: NonNegativeInt = 1
    only: str = ""


@dataclass(frozen=True)
class Mutant:
    path: str  # relative to the root
    line: int
    before: str
    after: str
    text: str  # of the complete file

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before!r} becomes {self.after!r}"


def main(argv: list[str]) -> int:
    options, rest = split_options(argv, MutantOptions)
    if rest:
        raise UserError(f"{rest[0]}: expected --count, --seed or --only")
    tracked = git("ls-files").splitlines()
    files = [path for path in tracked if is_program(path) and path.startswith(options.only)]
    every = [mutant for path in files for mutant in mutants(path)]
    if not every:
        raise UserError(f"--only={options.only}: no file of the program begins so")
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        for path in tracked:
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, Path(folder) / path, follow_symlinks=False)
        for mutant in drawn:
            killed = is_killed(mutant, Path(folder))
            print(f"{'killed  ' if killed else 'SURVIVES'} {mutant}", flush=True)
            survivors += [] if killed else [mutant]
    print(f"{len(drawn) - len(survivors)} of {len(drawn)} mutants are killed")
    return 0


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def is_program(path: str) -> bool:
    return path.endswith(".py") and not path.startswith(("tests/", "docs/", "config/train_", "."))


def mutants(path: str) -> Iterator[Mutant]:
    """Yield a file with another operator or number, a condition negated, or a call left out, in a function.

    What stands outside functions is mostly tables, which tests would have to repeat.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line.encode()))
    source = text.encode()

    def span(node: ast.AST) -> tuple[int, int]:
        return offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset

    functions = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.FunctionDef)]
    inside = {id(x): x for function in functions for x in behaviour(function)}  # a nested one's once
    for node in inside.values():
        for start, end, after in changes(node, span, source):
            before = source[start:end].decode()
            changed = (source[:start] + after.encode() + source[end:]).decode()
            yield Mutant(path, node.lineno, before, after, changed)


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


def changes(node: ast.AST, span: Span, source: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield the places of a node's text that are replaced, and with what."""
    match node:
        case ast.Compare(left=left, comparators=[right]) | ast.BoolOp(values=[left, right, *_]):
            yield from swapped(span(left)[1], span(right)[0], source)
        case ast.BinOp(left=left, right=right) if not (is_text(left) or is_text(right)):
            yield from swapped(span(left)[1], span(right)[0], source)
        case ast.UnaryOp(op=ast.Not()):
            start = span(node)[0]
            yield start, start + len("not "), ""
        case ast.Constant(value=bool(value)):
            yield *span(node), str(not value)
        case ast.Constant(value=int(value)):
            yield *span(node), str(value + 1)
        case ast.Expr(value=ast.Call() as call):
            yield *span(call), "None"


def swapped(start: int, end: int, source: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield the operator between two operands, and the one that takes its place."""
    found = OPERATOR.search(
        re.sub(rb"#.*", lambda comment: b" " * len(comment[0]), source[start:end]).decode()
    )
    if found and (other := SWAPS.get(" ".join(found[0].split()))):
        yield start + found.start(), start + found.end(), other


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", 0), str)


def is_killed(mutant: Mutant, folder: Path) -> bool:
    """Run the tests of the mutant's folder on it, those of its file first."""
    path = folder / mutant.path
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.text, encoding="utf-8")
    try:
        words = [sys.executable, "-m", "pytest", "-x", *tests_of(mutant.path)]
        return subprocess.run(words, cwd=folder, capture_output=True, timeout=LIMIT).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(original, encoding="utf-8")


def tests_of(path: str) -> list[str]:
    """Return the tests of a file of the program: its own, and then those of its folder."""
    place = Path(path).parent if "/" in path else Path({"serve.py": "tools/serving"}.get(path, ""))
    own = Path("tests") / Path(path).parent / f"test_{Path(path).name}"
    found = [str(own)] if (ROOT / own).exists() else []
    return found + ([str("tests" / place)] if place != Path() else [])


if __name__ == "__main__":
    command(main)
