"""Turn chapters of the book into notebooks, from the snippets that the tests run.

    python -m docs.as_notebook                          every chapter
    python -m docs.as_notebook 00-from-scratch --run    one, run from top to bottom: with what it printed here

A `pycon` fence becomes code cells with their outputs; the rest Markdown, less the fences marked `printed`.
"""

from common.errors import command  # isort: split

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
    kind: str  # code or markdown
    source: str
    output: str = ""  # what the chapter says that it prints


def cells(page: str) -> list[Cell]:
    """Return the cells of a chapter: its title, the one that finds the project, and the rest."""
    found, at = [], 0
    for fence in FENCE.finditer(page):
        if fence["language"] == "pycon" or fence["mark"] == "printed":
            snippet = fence["text"] if fence["language"] == "pycon" else ""
            found += markdown(page[at : fence.start()]) + code(snippet)
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
    found, source = [], ""
    for example in doctest.DocTestParser().get_examples(snippet):
        apart = source and re.match(r"(@|def |class )", example.source)
        source += "\n" * bool(apart) + example.source
        if example.want:
            found.append(Cell("code", source.strip(), example.want))
            source = ""
    return found + [Cell("code", source.strip())] * bool(source)


def notebook(page: str):
    """Return the notebook of a chapter's text, with the outputs that the chapter shows."""
    from nbformat import v4  # here, because the gate does without: pip install -r requirements-docs.txt

    made = []
    for i, cell in enumerate(cells(page)):
        made.append(getattr(v4, f"new_{cell.kind}_cell")(cell.source, id=f"c{i:02}"))
        if cell.output:
            made[-1].outputs = [v4.new_output("stream", name="stdout", text=cell.output)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


def write(chapter: Path, run: bool) -> Path:
    """Write a chapter's notebook, and return its path."""
    import nbformat

    path, made = NOTEBOOKS / f"{KEPT.get(chapter.stem, chapter.stem)}.ipynb", notebook(chapter.read_text())
    if run:
        import nbclient

        nbclient.execute(made, cwd=str(NOTEBOOKS), record_timing=False)
        for cell in (cell for cell in made.cells if cell.cell_type == "code"):  # less its words to stderr
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(made, path)
    return path


def main(argv: list[str]) -> None:
    names = [name for name in argv if name != "--run"] or [chapter.stem for chapter in chapters()]
    for name in names:
        print(write(BOOK / f"{name}.md", run="--run" in argv))


if __name__ == "__main__":
    command(main)
