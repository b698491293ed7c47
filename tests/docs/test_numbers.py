"""Every measured number in the prose of a page has its source beside it.

A measured number is a decimal number, or an integer or a number word with a unit (ms, minutes, %, GB,
tokens/s, bits, nats, dollars, "times as", an x that follows at once). Fences, `code`, formulas in $, comments
and the targets of links are not prose. Versions (of three parts, or after a program's name), a byte's 8 bits
and a 95% interval are not measured.

A source is a fence, an image (another test asks for its command), a table that docs.quotes fills, a command
or a file in `code`: in the same block, or in the one before or after. A block is what empty lines enclose: a
paragraph, a list, a table. A link to https://, to benchmarks.md or to a section of a page is a source of its
own block. A sentence, or a row of a table, that shows the arithmetic needs none: it has = or ≈, or an
operator between two numbers.
"""

import re

import pytest

from docs.pages import FENCE, ROOT, pages

UNITS = (
    "[mnµ]?s|(?:milli|micro)?seconds?|minutes?|hours?|days?|%|[kMGT]i?B|[kMGT]?bytes|tokens/s|[GT]?FLOPs?|bits?|nats?"
    r"|dollars|times\s(?:as|the|longer|faster|slower|more|less|smaller|larger)"
)
WORDS = "two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|forty|fifty"
NUMBER = re.compile(
    r"(?<![\w.:/^$-])(?:\$\d[\d,.]*|\d[\d,]*\.\d+(?![\w.]*\.\d)|\d[\d,]*[x×](?![\w ]*\d)|"
    rf"(?:\d[\d,]*|{WORDS})\s?(?:{UNITS})(?!\w))"
)
NO_PROSE = re.compile(r"`[^`]*`|<!--.*?-->|\]\([^)]*\)|\$[^$\d][^$]*\$|\$\$.*?\$\$|<[^<>]*>", re.S)
VERSION = (
    r"(?:Python|JAX|PyTorch|NumPy|Zen|CUDA|Llama|Qwen)[ -]\d+(?:\.\d+)*(?:(?:, | and | to | or )\d\.\d+)*"
)
NOT_MEASURED = re.compile(rf"\b(?:{VERSION}|(?:8|eight) bits\b|9\d% interval)")
PROGRAM = r"(?:python|bash|modal|pip|xz|curl|[\w/]+\.py)\s+[^`\s]"
SOURCE = re.compile(
    r"^```|^<!-- (?:quote|table|bench|reports): |!\[|"
    rf"`(?:{PROGRAM}|[\w-]+/[\w/.-]+\.(?:toml|json|csv|md)`)",
    re.M,
)
LINKED = re.compile(r"\]\((?:https://|[^)\s#]*benchmarks\.md|[^)\s#]+#)")
ARITHMETIC = re.compile(r"[=≈]|[\d)²³] [-+*/×·] [\d(]")
SENTENCES = re.compile(r"(?<=[.?!:])\s+(?=[A-Z*(\[`])|\n(?=[|-])")
PAGES = [*pages(), ROOT / "CONTRIBUTING.md", ROOT / "experiments/README.md"]


def blocks(page: str) -> list[tuple[int, str]]:
    """Return (line, text) of each block; a mark belongs to the table below it, and a fence is one block."""
    page = FENCE.sub(lambda m: re.sub(r"\n\n+", lambda gap: "\n" + " \n" * (len(gap[0]) - 1), m[0]), page)
    page = re.sub(r"^(<!--.*-->)\n\n(?=\|)", r"\1\n \n", page, flags=re.M)
    page = re.sub(r"^</?(?:details|summary|div).*$", "", page, flags=re.M)
    return [(page.count("\n", 0, m.start()) + 1, m[0]) for m in re.finditer(r"(?:.+\n?)+", page)]


def unsourced(page: str) -> list[str]:
    """Return "line: numbers: sentence" for each sentence whose measured numbers have no source."""
    found, parts = [], blocks(page)
    sourced = [False, *(bool(SOURCE.search(text)) for _, text in parts), False]
    for i, (line, text) in enumerate(parts):
        if any(sourced[i : i + 3]) or LINKED.search(text):
            continue
        for sentence in SENTENCES.split(text):
            plain = NOT_MEASURED.sub("", NO_PROSE.sub(" ", sentence))
            numbers = [] if ARITHMETIC.search(sentence) else [m[0] for m in NUMBER.finditer(plain)]
            if numbers:
                at = line + text[: text.index(sentence)].count("\n")
                found.append(f"{at}: {', '.join(numbers)}: {' '.join(sentence.split())}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_measured_number_of_a_page_has_its_source_beside_it(page):
    assert unsourced(page.read_text()) == []
