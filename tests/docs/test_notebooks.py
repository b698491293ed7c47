"""The notebooks run, and print what they say."""

import importlib.util

import pytest

from docs.pages import DOCS

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def printed(notebook) -> list[str]:
    """Return what each of a notebook's cells has printed."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None,
    reason="nothing runs notebooks here: pip install -r requirements-docs.txt",
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_was_saved_with(path):
    import nbclient  # here, because they are no tool of the gate
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    before = printed(notebook)
    assert any(before), "it was saved without its outputs"
    folder = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=folder).execute()
    assert printed(notebook) == before
