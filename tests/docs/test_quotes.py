"""The code and tables on the pages are what stands in the files, and a mark that leads nowhere is an error.

The pages have marks of every kind.
"""

import pytest

from common.errors import UserError
from docs import quotes
from docs.pages import ROOT, pages
from docs.quotes import renewed


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_quotes_of_every_page_are_what_stands_in_the_files(page):
    text = page.read_text()
    assert renewed(text) == text, "run python -m docs.quotes"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(quotes, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("@decorated\ndef outer(x):\n    y = x  # noqa\n    z = y\n    return z\n")
    (tmp_path / "found.md").write_text("# found\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nMade by hand.\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/benchmarks.json").write_text("")


@pytest.mark.parametrize(
    "old, new",
    [
        ("<!-- quote: a.py outer: y -->\n```python\n```\n", "y = x\n```"),
        ("<!-- quote: a.py outer: z ... return -->\n```python\ny = 0\n```\n", "z = y\nreturn z\n```"),
        ("<!-- table: found.md -->\n\n| a |\n|---|\n| 0 |\n", "| a | b |\n|---|---|\n| 1 | 2 |"),
    ],
)
def test_what_is_stale_is_renewed_and_nothing_else(files, old, new):
    mark = old.partition("\n")[0]
    plain = "```python\ny = 0\n```\n\n| a |\n|---|\n| 0 |\n"
    opening = "```python\n" if "quote" in mark else "\n"
    assert renewed(f"Before.\n\n{old}\n{plain}") == f"Before.\n\n{mark}\n{opening}{new}\n\n{plain}"


@pytest.mark.parametrize(
    "page, error",
    [
        ("<!-- quote: a.py inner -->\n```python\n```\n", "no such symbol"),
        ("<!-- quote: a.py outer: z ... y -->\n```python\n```\n", "begins with 'y'"),
        ("<!-- quote a.py outer -->\n```python\n```\n", "is not of the form"),
        ("<!-- table: a.py -->\n", "has no table"),
        ("<!-- bench: b.py -->\n", "no such command"),
    ],
)
def test_a_mark_that_leads_nowhere_is_an_error(files, page, error):
    with pytest.raises(UserError, match=error):
        renewed(page)
