"""The notebooks run, and print what they say; those made from chapters are the chapters."""

import doctest
import json

import pytest

from docs.as_notebook import KEPT, NOTEBOOKS, cells
from docs.pages import BOOK, fences
from tests.docs.test_runs import ALIKE

WRITTEN = sorted(path for path in NOTEBOOKS.glob("[a-z]*.ipynb") if path.stem not in KEPT.values())


def shown(cell: dict) -> str:
    """Return what a cell has printed, and the value of its last line."""
    texts = [output.get("text") or output["data"]["text/plain"] for output in cell.get("outputs", [])]
    return "\n".join("".join(text).rstrip("\n") for text in texts) + "\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_was_saved_with(path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")  # of requirements-docs.txt, as the others
    notebook = nbformat.read(path, as_version=4)
    saved = [shown(cell) for cell in notebook.cells]
    assert any(text.strip() for text in saved), "it was saved without its outputs"
    nbclient.execute(notebook, timeout=600, cwd=str(path.parent))
    assert [shown(cell) for cell in notebook.cells] == saved


@pytest.mark.parametrize("chapter", KEPT)
def test_a_chapters_notebook_that_is_kept_is_the_chapter(chapter):
    page = (BOOK / f"{chapter}.md").read_text()
    found = json.loads((NOTEBOOKS / f"{KEPT[chapter]}.ipynb").read_text())["cells"]
    for cell, ours in zip(cells(page), found, strict=True):
        text = shown(ours)
        assert (ours["cell_type"], "".join(ours["source"])) == cell[:2], "run python -m docs.as_notebook"
        assert not cell.output or doctest.OutputChecker().check_output(cell.output, text, ALIKE), text
    outputs = "".join(map(shown, found))
    for fence in fences(page):
        assert fence.mark != "printed" or fence.text in outputs, fence


def test_a_cell_ends_where_something_is_printed_and_links_lead_out_of_the_folder():
    page = (
        "# 1 · A\n\nSee [b](02-b.md#c), [d](../d.md).\n\n"
        "<!-- slow -->\n```pycon\n>>> x = 1\n>>> x\n1\n>>> y = 2\n```\n\n"
        "<details markdown>\n<summary>Answer</summary>\n\n"
        "<!-- printed -->\n```text\nmore\n```\n\nB.\n\n</details>\n"
    )
    title, _, *rest = cells(page)
    assert title.source == "# 1 · A\n\nSee [b](../book/02-b.md#c), [d](../d.md)."
    assert rest == [
        ("code", "x = 1\nx", "1\n"),
        ("code", "y = 2", ""),
        ("markdown", "**Answer**", ""),
        ("markdown", "B.", ""),
    ]
