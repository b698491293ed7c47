"""The pages lead somewhere, show figures that a command draws, and chapters have one form."""

import re
from pathlib import Path

import pytest

from docs.pages import BOOK, DOCS, HEADING, IMAGE, LINK, ROOT, anchors, chapters, fences, pages, prose

IMAGES = DOCS / "images"
FIGURES = {path.stem for path in (DOCS / "figures").glob("[a-z]*.py")}
CODE = {"python", "javascript"}
LONGEST = 3500  # words: twenty minutes at 175 a minute, which leaves time for the code
ALL = 47_500  # words of all pages: a weekend


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def images_of(page: Path) -> set[Path]:
    return {(page.parent / image["target"]).resolve() for image in IMAGE.finditer(prose(page.read_text()))}


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_link_leads_to_a_file_and_an_anchor_that_are_there(page):
    lost = []
    for link in LINK.finditer(prose(page.read_text())):
        path, _, anchor = link["target"].partition("#")
        if re.match(r"(https?|mailto):", link["target"]):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            lost.append(link["target"])
    assert lost == []


@pytest.mark.parametrize("page", [p for p in pages() if DOCS in p.parents], ids=name)
def test_a_page_links_to_no_file_outside_of_docs(page):
    """The site has nothing else: a file of the code is named in `code`, and quoted."""
    targets = [link["target"].partition("#")[0] for link in LINK.finditer(prose(page.read_text()))]
    local = [target for target in targets if target and not re.match(r"(https?|mailto):", target)]
    assert [target for target in local if DOCS not in (page.parent / target).resolve().parents] == []


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


@pytest.mark.parametrize("chapter", chapters(), ids=name)
def test_a_chapter_opens_with_what_it_teaches_and_closes_with_exercises(chapter):
    text = chapter.read_text()
    assert len(prose(text).split()) <= LONGEST
    headings = [heading["text"] for heading in HEADING.finditer(prose(text))]
    assert headings[0].startswith(f"{int(chapter.name[:2])} · ")
    assert re.match(r"# [^\n]+\n\n\*\*You will be able to\*\* ", text)
    assert [heading for heading in headings if heading in ("Exercises", headings[-1])] == ["Exercises"]
    answers = text.partition("\n## Exercises\n")[2]
    exercises = len(re.findall(r"^\*\*\d\.\*\* ", answers, re.M))
    assert exercises >= 3
    assert answers.count("<details markdown>\n<summary>Answer</summary>\n\n") == exercises
    assert answers.count("\n</details>") == exercises


@pytest.mark.parametrize("page", pages(), ids=name)
def test_fences_are_closed_and_say_their_language(page):
    text = page.read_text()
    assert text.count("\n```") == 2 * len(fences(text))
    if BOOK in page.parents:
        assert {fence.language for fence in fences(text)} <= CODE | {"pycon", "console", "text"}
        assert all(fence.mark for fence in fences(text) if fence.language in CODE), "code is quoted"


def test_headings_have_the_anchors_that_github_gives_them():
    page = "# A `b.py`, and [c](d.md): e/f - g\n\n## Same\n\n## Same\n\n```text\n# none\n```\n"
    assert anchors(page) == {"a-bpy-and-c-ef---g", "same", "same-1"}


def test_all_pages_together_are_a_weekends_reading():
    assert sum(len(page.read_text().split()) for page in (*pages(), ROOT / "CONTRIBUTING.md")) <= ALL
