"""No chapter uses a word of the trade before the chapter that docs/words.md names explains it.

That chapter has the word in bold, where it explains it. A paragraph that links to that chapter may use the
word before, and so may the one at the top of a chapter that says what it teaches.
"""

import re

import pytest

from docs.pages import DOCS, chapters, prose

LINE = re.compile(r"^- \[(\d+)\]\(book/[\w-]+\.md\): (.+(?:\n  .+)*)", re.M)
NO_WORDS = re.compile(r"`[^`]*`|<[^>]*>|!\[[^\]]*\]\([^)]*\)|^#.*$|(?<!\*)\*[^*]+\*(?!\*)", re.M)


def words(page: str) -> list[tuple[str, int]]:
    """Return each word of the list, and its chapter."""
    found = LINE.finditer(page)
    return [(word.strip(), int(m[1])) for m in found for word in m[2].split(",")]


def used_before(word: str, explained: int, pages: list[str]) -> str:
    """Return the first paragraph that uses the word too early, or ""."""
    stem = r"\s+".join(map(re.escape, word.removesuffix("s").split()))
    use, bold = rf"(?i)(?<![\w-]){stem}s?(?![\w-])", rf"(?i)\*\*[^*]*{stem}[^*]*\*\*"
    for i, page in enumerate(pages[: explained + 1]):
        for paragraph in re.split(r"\n\n+", prose(page))[2:]:
            if i == explained and re.search(bold, paragraph):
                return ""
            text = NO_WORDS.sub("", paragraph)
            if re.search(use, text) and f"({explained:02}-" not in text:
                return f"chapter {i}: {paragraph.strip()}"
    return f"chapter {explained} does not have it in bold"


@pytest.mark.parametrize("word, chapter", words((DOCS / "words.md").read_text()))
def test_a_word_is_explained_before_its_use(word, chapter):
    assert used_before(word, chapter, [path.read_text() for path in chapters()]) == ""
