"""The code on the pages is what stands in the files, and a mark that leads nowhere is an error."""

import json

import pytest

from common.errors import UserError
from docs import quotes
from docs.pages import ROOT, pages
from docs.quotes import quote, renewed

SOURCE = '''\
"""A module."""

SIZE: int = 3
NAMES = (
    "a",
)


@decorated
def outer(x):
    if x:
        first = x
        second = first
    return second  # ty: ignore[some-rule]


class Thing:
    size = 1

    def method(self):
        return 2
'''


SCRIPT = "function outer(x) {\n  const inner = () => {\n    return x;\n  };\n  return inner;\n}\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "a.js").write_text(SCRIPT)
    monkeypatch.setattr(quotes, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_quotes_of_every_page_are_what_stands_in_the_files(page):
    text = page.read_text()
    assert renewed(text) == text, "run python -m docs.quotes"


@pytest.mark.parametrize(
    "mark, code",
    [
        ("quote: a.py SIZE", "SIZE: int = 3\n"),
        ("quote: a.py NAMES", 'NAMES = (\n    "a",\n)\n'),
        ("quote: a.py Thing.method", "def method(self):\n    return 2\n"),
        ("quote: a.py Thing.size", "size = 1\n"),
        ("quote: a.py outer: @decorated ... def outer", "@decorated\ndef outer(x):\n"),
        ("quote: a.py outer: first = ... second", "first = x\nsecond = first\n"),
        ("quote: a.py: SIZE ... NAMES", "SIZE: int = 3\nNAMES = (\n"),
        ("quote: a.js: const inner ... };", "const inner = () => {\n  return x;\n};\n"),
        ("quote: a.py", SOURCE.replace("  # ty: ignore[some-rule]", "")),
    ],
)
def test_a_mark_names_a_symbol_or_a_part(root, mark, code):
    assert quote(mark) == code


@pytest.mark.parametrize(
    "mark, error",
    [
        ("quote: a.py inner", "no such symbol"),
        ("quote: a.py outer: third", "begins with 'third'"),
        ("quote: a.py outer: second ... first", "begins with 'first'"),
        ("quote a.py outer", "is not of the form"),
    ],
)
def test_a_mark_that_leads_nowhere_is_an_error(root, mark, error):
    with pytest.raises(UserError, match=error):
        quote(mark)


def test_a_stale_quote_is_renewed_and_nothing_else(root):
    stale = "```python\nsize = 0\n```\n"
    page = f"Before.\n\n<!-- quote: a.py Thing.size -->\n{stale}\n{stale}"
    assert renewed(page) == page.replace("size = 0", "size = 1", 1)
    assert renewed(renewed(page)) == renewed(page)
    script = "<!-- quote: a.js: return -->\n```javascript\n{}```\n"
    assert renewed(script.format("")) == script.format("return x;\n")


def test_a_table_is_renewed_and_nothing_else_is(root):
    (root / "found.md").write_text("# found\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nMade by hand.\n")
    page = "Before.\n\n<!-- table: found.md -->\n{}\nBehind.\n"
    new = page.format("\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    assert renewed(page.format("\n| a |\n|---|\n| 0 |\n")) == new
    assert renewed(page.format("")) == renewed(new) == new


def test_a_benchmarks_table_is_the_last_run_of_its_command(root):
    versions = {"jax": "1", "python": "3"}
    where = {"cpu": "2 cores", "versions": versions, "commit": "0123456789", "date": "today"}
    runs = [
        where
        | {"command": f"python bench.py a.py {file}", "figures": [{"name": "JAX", "ms": ms, "mfu": 0.1}]}
        for file, ms in (("--json=x", 2.0), ("--loop", 3.0), ("--json=x", 1.25))
    ]
    (root / "docs").mkdir()
    (root / "docs/benchmarks.json").write_text("\n".join(map(json.dumps, runs)))
    mark = "<!-- bench: a.py -->\n"
    caption = "*`python bench.py a.py`, 2 cores, JAX 1, Python 3, 0123456, today*"
    table = f"\n|  | ms/step |\n| --- | --- |\n| JAX | 1.2 |\n\n{caption}\n"
    assert renewed(f"{mark}\n| old |\n\n*then*\nafter\n") == f"{mark}{table}after\n"
    with pytest.raises(UserError, match="no such command"):
        renewed("<!-- bench: b.py -->\n")
