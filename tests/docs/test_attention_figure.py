"""Chapter 3's figure with sliders computes what NumPy does, obeys its sliders, and needs no network."""

import shutil

import numpy as np
import pytest

from docs.figures.attention_by_hand import KEYS, QUERY, VALUES, weights
from docs.pages import DOCS

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install -r requirements-dev.txt"
)
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")


@pytest.fixture
def page():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, wrong = browser.new_page(), []
        page.on("request", lambda r: None if r.url.startswith("file:") else wrong.append(r.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto((DOCS / "interactive" / "attention.html").as_uri())
        yield page
        browser.close()
    assert wrong == []


def row(page, name: str) -> list[float]:
    """Return the numbers of a row of the table below the figure."""
    cells = page.locator(f"tr:has(th:text-is('{name}')) td").all_inner_texts()
    return [float(cell.replace("−", "-").replace("∞", "inf")) for cell in cells]


def test_the_figure_with_sliders_computes_attention(page):
    assert page.evaluate("KEYS") == KEYS.tolist() and page.evaluate("VALUES") == VALUES.tolist()
    half = 0.0051  # two digits are shown
    np.testing.assert_allclose(row(page, "weight"), weights(QUERY), atol=half)
    np.testing.assert_allclose(row(page, "output"), weights(QUERY) @ VALUES, atol=half)

    page.get_by_label("its length").fill("0")  # who asks nothing reads everything alike
    assert row(page, "weight") == [0.25] * 4
    page.get_by_label("reads up to token").fill("2")
    assert row(page, "weight") == [0.5, 0.5, 0, 0]
    assert row(page, "score")[2:] == [-np.inf, -np.inf]
    page.get_by_label("its length").fill("6")
    page.get_by_label("direction of the query").fill("-90")
    turned = weights(np.array([0.0, -6.0]))[:2]
    np.testing.assert_allclose(row(page, "weight")[:2], turned / turned.sum(), atol=half)


def test_on_paper_the_figure_stands_without_its_sliders(page):
    page.emulate_media(media="print")
    assert page.locator("svg").is_visible() and not page.locator("form").is_visible()
