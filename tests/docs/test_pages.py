"""The pages lead somewhere, and show figures that a command draws."""

import re
from pathlib import Path

import pytest

from docs.pages import BOOK, DOCS, IMAGE, LINK, ROOT, anchors, fences, pages, prose
from parallel.mesh import AXES
from tests.test_imports import COMMANDS

IMAGES = DOCS / "images"
FIGURES = {path.stem for path in (DOCS / "figures").glob("[a-z]*.py")}
CODE = {"python", "javascript"}
ALL = 42_500  # words of all pages: a weekend


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def images_of(page: Path) -> set[Path]:
    return {(page.parent / image["target"]).resolve() for image in IMAGE.finditer(prose(page.read_text()))}


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_link_leads_to_a_file_and_an_anchor_that_are_there(page):
    """From docs/ only to docs/, for the site has nothing else: a file of the code is named, and quoted."""
    lost = []
    for link in LINK.finditer(prose(page.read_text())):
        path, _, anchor = link["target"].partition("#")
        if re.match(r"(https?|mailto):", link["target"]):
            continue
        target = (page.parent / path).resolve() if path else page
        on_the_site = DOCS in target.parents or DOCS not in page.parents
        if not (target.exists() and on_the_site) or (anchor and anchor not in anchors(target.read_text())):
            lost.append(link["target"])
    assert lost == []


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_image_is_there_and_the_command_that_draws_it_is_beside_it(page):
    for image in images_of(page):
        assert image.is_file(), image
        if image.stem in FIGURES:
            assert f"python -m docs.figures.{image.stem}" in page.read_text()


def test_every_image_is_shown_and_every_figure_used():
    shown = set().union(*map(images_of, pages()))
    assert {path for path in IMAGES.iterdir() if path not in shown} == set()
    assert {figure for figure in FIGURES if figure not in {path.stem for path in shown}} == set()


def test_every_page_is_in_the_navigation_of_the_site():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    assert listed == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


@pytest.mark.parametrize("page", pages(), ids=name)
def test_fences_and_folds_are_closed_and_fences_say_their_language(page):
    text = page.read_text()
    assert text.count("<details") == text.count("</details>")
    assert text.count("\n```") == 2 * len(fences(text))
    if BOOK in page.parents:
        assert {fence.language for fence in fences(text)} <= CODE | {"pycon", "console", "text"}
        assert all(fence.mark for fence in fences(text) if fence.language in CODE), "code is quoted"


def test_every_command_and_mesh_axis_has_its_row_in_the_table_of_what_works():
    table = [line for line in (DOCS / "status.md").read_text().splitlines() if line.startswith("| ")]
    named = {name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {*COMMANDS, *AXES} - named == set()


def test_all_pages_together_are_a_weekends_reading():
    assert sum(len(page.read_text().split()) for page in (*pages(), ROOT / "CONTRIBUTING.md")) <= ALL
