"""The notebooks run, and print what they say; those made from chapters are the chapters."""

import doctest
import importlib.util
import json

import pytest

from data.dataset import prepare_if_missing
from docs.as_notebook import KEPT, NOTEBOOKS, cells, notebook
from docs.pages import BOOK, chapters, fences
from tests.docs.test_runs import ALIKE

WRITTEN = sorted(path for path in NOTEBOOKS.glob("[a-z]*.ipynb") if path.stem not in KEPT.values())
runs_notebooks = pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None,
    reason="nothing runs notebooks here: pip install -r requirements-docs.txt",
)


def printed(notebook) -> list[str]:
    """Return what each of a notebook's cells has printed."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


def shown(cell: dict) -> str:
    """Return what a cell of code has printed, and the value of its last line."""
    texts = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]
    return "\n".join("".join(text).rstrip("\n") for text in texts) + "\n"


def run_again(path) -> tuple:
    """Return a notebook as it was saved, and as it runs here."""
    import nbclient  # here, because they are no tool of the gate
    import nbformat

    saved, again = nbformat.read(path, as_version=4), nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(again, timeout=600, resources=folder).execute()
    return saved, again


def assert_prints_what_the_chapter_says(page: str, found: list[dict]) -> None:
    for cell, ours in zip(cells(page), found, strict=True):
        if cell.output:
            text = shown(ours)
            assert doctest.OutputChecker().check_output(cell.output, text, ALIKE), (cell, text)


@pytest.mark.slow
@pytest.mark.timeout(900)
@runs_notebooks
@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_was_saved_with(path):
    saved, again = run_again(path)
    assert any(printed(saved)), "it was saved without its outputs"
    assert printed(again) == printed(saved)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@runs_notebooks
@pytest.mark.parametrize("chapter", KEPT)
def test_a_chapters_notebook_prints_what_the_chapter_says(chapter):
    prepare_if_missing("book_char")
    _, again = run_again(NOTEBOOKS / f"{KEPT[chapter]}.ipynb")
    assert_prints_what_the_chapter_says((BOOK / f"{chapter}.md").read_text(), again.cells)


@pytest.mark.parametrize("chapter", KEPT)
def test_a_chapters_notebook_that_is_kept_is_the_chapter(chapter):
    page = (BOOK / f"{chapter}.md").read_text()
    found = json.loads((NOTEBOOKS / f"{KEPT[chapter]}.ipynb").read_text())["cells"]
    ours = [(cell["cell_type"], "".join(cell["source"])) for cell in found]
    assert ours == [cell[:2] for cell in cells(page)], f"run python -m docs.as_notebook {chapter} --run"
    assert_prints_what_the_chapter_says(page, found)
    outputs = "".join(shown(cell) for cell in found if cell["cell_type"] == "code")
    for fence in fences(page):
        assert fence.mark != "printed" or fence.text in outputs, fence


@pytest.mark.parametrize("chapter", chapters(), ids=lambda path: path.stem)
def test_every_chapter_makes_a_notebook(chapter):
    page = chapter.read_text()
    code = "\n".join(cell.source for cell in cells(page) if cell.kind == "code")
    for fence in fences(page):
        if fence.language == "pycon":
            for example in doctest.DocTestParser().get_examples(fence.text):
                assert example.source.strip() in code
    if importlib.util.find_spec("nbformat"):
        import nbformat

        nbformat.validate(notebook(page))


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
