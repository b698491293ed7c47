"""Turn chapters of the book into notebooks, from the snippets that the tests run.

    python -m docs.as_notebook                          every chapter
    python -m docs.as_notebook 00-from-scratch --run    one, run from top to bottom: with what it printed here

A `pycon` fence becomes code cells, each with the printed text that the chapter shows, and all else becomes
Markdown. A fence marked `printed` shows an output in full that a `...` stands for, and is left out.
"""

import argparse
import doctest
import json
import re
from pathlib import Path
from typing import NamedTuple

from docs.pages import BOOK, DOCS, FENCE, chapters

NOTEBOOKS = DOCS / "notebooks"
KEPT = {"00-from-scratch": "from_scratch"}  # in the repository, run; the others are made on demand
COLAB = json.loads((NOTEBOOKS / "scaling_laws.ipynb").read_text())["cells"][1]["source"]


class Cell(NamedTuple):
    """A cell of a notebook."""

    kind: str  # code or markdown
    source: str
    output: str = ""  # what the chapter says that it prints


def cells(page: str) -> list[Cell]:
    """Return the cells of a chapter: its title, the one that finds the project, and the rest."""
    found, at = [], 0
    for fence in FENCE.finditer(page):
        if fence["language"] == "pycon" or fence["mark"] == "printed":
            found += markdown(page[at : fence.start()])
            found += code(fence["text"]) if fence["language"] == "pycon" else []
            at = fence.end()
    found += markdown(page[at:])
    return [found[0], Cell("code", "".join(COLAB)), *found[1:]]


def markdown(text: str) -> list[Cell]:
    """Return the cell of a text, without marks and folds, its links as seen from the folder of notebooks."""
    text = re.sub(r"<!--.*?-->\n?|</?details.*?>\n?", "", text, flags=re.S)
    text = re.sub(r"<summary>(.*?)</summary>", r"**\1**", text)
    text = re.sub(r"(\]\()(?=[\w-]+\.md)", rf"\1../{BOOK.name}/", text)
    return [Cell("markdown", text.strip())] if text.strip() else []


def code(snippet: str) -> list[Cell]:
    """Return the cells of a snippet: one ends where something is printed, as a notebook shows it there."""
    found, lines = [], []
    for example in doctest.DocTestParser().get_examples(snippet):
        if lines and re.match(r"(@|def |class )", example.source):
            lines.append("\n")
        lines.append(example.source)
        if example.want:
            found.append(Cell("code", "".join(lines).strip(), example.want))
            lines = []
    return found + ([Cell("code", "".join(lines).strip())] if lines else [])


def notebook(page: str):
    """Return the notebook of a chapter's text, with the outputs that the chapter shows."""
    import nbformat  # here, because the gate does without: pip install -r requirements-docs.txt

    new, made = nbformat.v4, []
    for i, cell in enumerate(cells(page)):
        made.append(getattr(new, f"new_{cell.kind}_cell")(cell.source, id=f"c{i:02}"))
        if cell.output:
            made[-1].outputs = [new.new_output("stream", name="stdout", text=cell.output)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new.new_notebook(cells=made, metadata={"kernelspec": kernel})


def write(chapter: Path, run: bool) -> Path:
    """Write a chapter's notebook, and return its path."""
    import nbclient
    import nbformat

    path, made = NOTEBOOKS / f"{KEPT.get(chapter.stem, chapter.stem)}.ipynb", notebook(chapter.read_text())
    if run:
        nbclient.NotebookClient(made, timeout=900, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
    nbformat.write(made, path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("chapters", nargs="*", metavar="chapter", choices=[[], *(c.stem for c in chapters())])
    parser.add_argument("--run", action="store_true", help="run them: their outputs are what they print here")
    options = parser.parse_args()
    for chapter in chapters():
        if chapter.stem in options.chapters or not options.chapters:
            print(write(chapter, options.run))
