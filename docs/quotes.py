"""Copy the code and the tables that the pages quote from their files, so that no page shows what once was.

    python -m docs.quotes               rewrite every quote; says which have changed
    python -m docs.quotes --check       only say which would; ends with status 1 if one would

A quote is a fence, of Python or JavaScript, below one of these marks. A symbol is a Python function, class,
method or name that is assigned to, by its dotted name. A part runs from the first line that begins with the
one text to the next that begins with the other; with one text alone it is that line.

    <!-- quote: model.py Attention.__call__ -->
    <!-- quote: model.py Attention.__init__: self.c_q ... self.c_proj -->
    <!-- quote: config/quickstart.py: learning_rate ... warmup_iters -->
    <!-- quote: config/quickstart.py -->
    <!-- quote: tools/serving/page/model.js: const block ... }; -->

A table below such a mark is the only one of another page, as experiments.compare writes them.

    <!-- table: experiments/results/optimizers.md -->

A table below `bench` and a command is what `bench.py --json=docs/benchmarks.json` wrote for it last.

    <!-- bench: config/quickstart.py --loop -->
"""

import ast
import json
import re
import sys
from pathlib import Path
from textwrap import dedent

from docs.pages import FENCE, ROOT, pages

NOTES_TO_TOOLS = re.compile(r"  # (?:ty: ignore|noqa).*$", re.M)  # no reader wants them
TABLE = re.compile(r"^<!-- table: (?P<path>\S+) -->\n(?:\n(?:\|[^\n]*\n)+)?", re.M)
BENCH = re.compile(r"^<!-- bench: (?P<words>.+) -->\n(?:\n(?:\|[^\n]*\n)+\n\*[^\n]*\*\n)?", re.M)
FIGURES = {  # of a variant in benchmarks.json: its column and format
    "ms": ("ms/step", ",.1f"),
    "spread": ("spread", ".0%"),
    "tokens_per_second": ("tokens/s", ",.0f"),
    "first_token_ms": ("ms to the first token", ".0f"),
    "between_parts_ms": ("ms between parts", ".0f"),
}
MARK = re.compile(r"quote: (?P<path>[^\s:]+)(?: (?P<symbol>[\w.]+))?(?:: (?P<part>.+))?")


def quote(mark: str, root: Path = ROOT) -> str:
    """Return the code that a mark names, without its indentation. Raises LookupError if it is not there."""
    if not (match := MARK.fullmatch(mark)):
        raise LookupError(f"{mark!r} is not of the form quote: FILE[ SYMBOL][: FIRST ... LAST]")
    path = root / match["path"]
    if not path.is_file():
        raise LookupError(f"{mark}: there is no such file")
    lines = path.read_text().splitlines()
    if match["symbol"]:
        lines = lines_of(match["symbol"], lines, mark)
    if match["part"]:
        lines = part_of(lines, match["part"], mark)
    return NOTES_TO_TOOLS.sub("", dedent("\n".join(lines)).strip("\n") + "\n")


def lines_of(symbol: str, lines: list[str], mark: str) -> list[str]:
    """Return the lines of a symbol's definition, decorators included."""
    node: ast.AST = ast.parse("\n".join(lines))
    for name in symbol.split("."):
        node = next((child for child in getattr(node, "body", []) if name in names(child)), ast.Pass())
    if not isinstance(node, ast.stmt) or isinstance(node, ast.Pass):
        raise LookupError(f"{mark}: there is no such symbol in the file")
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return lines[first - 1 : node.end_lineno]


def names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def part_of(lines: list[str], part: str, mark: str) -> list[str]:
    """Return the lines from the first that begins with one text to the next that begins with the other."""
    first, _, last = part.partition(" ... ")
    start = next((i for i, line in enumerate(lines) if line.strip().startswith(first)), None)
    if start is None:
        raise LookupError(f"{mark}: no line there begins with {first!r}")
    end = next(
        (i for i, line in enumerate(lines) if i >= start and line.strip().startswith(last or first)), None
    )
    if end is None:
        raise LookupError(f"{mark}: no line behind it begins with {last!r}")
    return lines[start : end + 1]


def table_of(path: str, root: Path = ROOT) -> str:
    """Return the lines of a page's table. Raises LookupError if it has none."""
    if not (root / path).is_file():
        raise LookupError(f"table: {path}: there is no such file")
    found = [line for line in (root / path).read_text().splitlines() if line.startswith("|")]
    if not found:
        raise LookupError(f"table: {path}: the file has no table")
    return "\n".join(found) + "\n"


def bench_table(words: str, root: Path = ROOT) -> str:
    """Return the figures of the last run of a bench.py command, and where it ran. Raises LookupError."""
    command = f"python bench.py {words}"
    records = map(json.loads, (root / "docs/benchmarks.json").read_text().splitlines())
    found = [x for x in records if re.sub(r" --json=\S+", "", x["command"]) == command]
    if not found:
        raise LookupError(f"bench: {words}: docs/benchmarks.json has no such command")
    run = found[-1]
    columns = {key: column for key, column in FIGURES.items() if all(key in x for x in run["figures"])}
    rows = [["", *(name for name, _ in columns.values())], ["---"] * (1 + len(columns))]
    for x in run["figures"]:
        rows.append([x["name"], *(format(x[key], spec) for key, (_, spec) in columns.items())])
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    versions = f"JAX {run['versions']['jax']}, Python {run['versions']['python']}"
    return f"{table}\n*`{command}`, {run['cpu']}, {versions}, {run['commit'][:7]}, {run['date']}*\n"


def renewed(page: str, root: Path = ROOT) -> str:
    """Return a page's text with each quote as its file has it now. Raises LookupError."""

    def renew(fence: re.Match) -> str:
        mark = fence["mark"] or ""
        if not mark.startswith("quote"):
            return fence[0]
        return f"<!-- {mark} -->\n```{fence['language']}\n{quote(mark, root)}```"

    def renew_table(match: re.Match) -> str:
        return f"<!-- table: {match['path']} -->\n\n{table_of(match['path'], root)}"

    def renew_bench(match: re.Match) -> str:
        return f"<!-- bench: {match['words']} -->\n\n{bench_table(match['words'], root)}"

    return BENCH.sub(renew_bench, TABLE.sub(renew_table, FENCE.sub(renew, page)))


def main(argv: list[str]) -> int:
    stale = 0
    for path in pages():
        page = path.read_text()
        if (new := renewed(page)) != page:
            stale += 1
            print(f"{path.relative_to(ROOT)}: a quote {'is stale' if argv else 'was renewed'}")
            if not argv:
                path.write_text(new)
    return 1 if argv and stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LookupError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
