"""The pages of the documentation, taken apart: fences and the marks above them, links, images, headings.

A page is plain Markdown. A mark is an HTML comment on the line above a fence, such as `<!-- slow -->`.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BOOK = DOCS / "book"

FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\]\[])*)\]\((?P<target>[^)\s]+)\)")
IMAGE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
LIVE = re.compile(  # what docs/interactive/live.js opens on the site, and the picture that stands for it
    r'^<div class="live" data-open="(?P<hash>\S+)" markdown>\n\n'
    r"!\[[^\]]*\]\((?P<image>[^)\s]+)\)\n\n\*[^\n]+\*\n\n</div>$",
    re.M,
)
HEADING = re.compile(r"^#+ (?P<text>.*)$", re.M)


class Fence(NamedTuple):
    """A fenced part of a page."""

    mark: str  # what stands in the comment above it, or ""
    language: str
    text: str  # with its last newline
    line: int  # of its first line of text, from 0


def pages() -> list[Path]:
    """Return every page: those below docs/, and the README."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def chapters() -> list[Path]:
    return sorted(BOOK.glob("[0-9][0-9]-*.md"))


def fences(page: str) -> list[Fence]:
    """Return the fences of a page's text, in order."""
    return [
        Fence(m["mark"] or "", m["language"], m["text"], page.count("\n", 0, m.start("text")))
        for m in FENCE.finditer(page)
    ]


def prose(page: str) -> str:
    """Return a page's text without its fences and comments, as many lines as before."""

    def blank(match: re.Match) -> str:
        return "\n" * match[0].count("\n")

    return re.sub(r"<!--.*?-->", blank, FENCE.sub(blank, page), flags=re.S)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found, times = set(), Counter()
    for heading in HEADING.finditer(prose(page)):
        words = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading["text"]).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{slug}-{times[slug]}" if times[slug] else slug)
        times[slug] += 1
    return found
