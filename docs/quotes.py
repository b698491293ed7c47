"""Copy the code and the tables that the pages quote from their files, so that no page shows what once was.

    python -m docs.quotes               rewrites every quote; says which pages have changed

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

from common.errors import UserError, command  # isort: split

import ast
import json
import re
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


def quote(mark: str) -> str:
    """Return the code that a mark names, without its indentation. Raises UserError if it is not there."""
    if not (match := MARK.fullmatch(mark)):
        raise UserError(f"{mark!r} is not of the form quote: FILE[ SYMBOL][: FIRST ... LAST]")
    lines = (ROOT / match["path"]).read_text().splitlines()
    if match["symbol"]:
        lines = lines_of(match["symbol"], lines, mark)
    if match["part"]:
        first, _, last = match["part"].partition(" ... ")
        lines = lines[line_of(first, lines, mark) :]
        lines = lines[: line_of(last or first, lines, mark) + 1]
    return NOTES_TO_TOOLS.sub("", dedent("\n".join(lines)).strip("\n") + "\n")


def lines_of(symbol: str, lines: list[str], mark: str) -> list[str]:
    """Return the lines of a symbol's definition, decorators included."""
    node: ast.AST = ast.parse("\n".join(lines))
    for name in symbol.split("."):
        node = next((child for child in getattr(node, "body", []) if name in names(child)), ast.Pass())
    if not isinstance(node, ast.stmt) or isinstance(node, ast.Pass):
        raise UserError(f"{mark}: there is no such symbol in the file")
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


def line_of(text: str, lines: list[str], mark: str) -> int:
    """Return which is the first line that begins with a text."""
    for i, line in enumerate(lines):
        if line.strip().startswith(text):
            return i
    raise UserError(f"{mark}: no line there begins with {text!r}")


def table(path: str) -> str:
    """Return the lines of a page's table. Raises UserError if it has none."""
    found = [line for line in (ROOT / path).read_text().splitlines() if line.startswith("|")]
    if not found:
        raise UserError(f"table: {path}: the file has no table")
    return "\n".join(found) + "\n"


def bench(words: str) -> str:
    """Return the figures of the last run of a bench.py command, and where it ran. Raises UserError."""
    command = f"python bench.py {words}"
    records = map(json.loads, (ROOT / "docs/benchmarks.json").read_text().splitlines())
    found = [x for x in records if re.sub(r" --json=\S+", "", x["command"]) == command]
    if not found:
        raise UserError(f"bench: {words}: docs/benchmarks.json has no such command")
    run = found[-1]
    columns = {key: column for key, column in FIGURES.items() if all(key in x for x in run["figures"])}
    rows = [["", *(name for name, _ in columns.values())], ["---"] * (1 + len(columns))]
    for x in run["figures"]:
        rows.append([x["name"], *(format(x[key], spec) for key, (_, spec) in columns.items())])
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    versions = f"JAX {run['versions']['jax']}, Python {run['versions']['python']}"
    return f"{lines}\n*`{command}`, {run['cpu']}, {versions}, {run['commit'][:7]}, {run['date']}*\n"


def renewed(page: str) -> str:
    """Return a page's text with each quote as its file has it now. Raises UserError."""

    def renew(fence: re.Match) -> str:
        mark = fence["mark"] or ""
        if not mark.startswith("quote"):
            return fence[0]
        return f"<!-- {mark} -->\n```{fence['language']}\n{quote(mark)}```"

    page = FENCE.sub(renew, page)
    page = TABLE.sub(lambda m: f"<!-- table: {m['path']} -->\n\n{table(m['path'])}", page)
    return BENCH.sub(lambda m: f"<!-- bench: {m['words']} -->\n\n{bench(m['words'])}", page)


def main(_: list[str]) -> None:
    for path in pages():
        page = path.read_text()
        if (new := renewed(page)) != page:
            path.write_text(new)
            print(f"{path.relative_to(ROOT)}: a quote was renewed")


if __name__ == "__main__":
    command(main)
