"""Helpers drive the page with Playwright, in Debian's headless chromium."""

import os
from pathlib import Path

import pytest

from tests.helpers import slowly

expect = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install -r requirements-dev.txt"
).expect
expect.set_options(timeout=60_000)  # ms, as the page's own: a busy machine may need more than 5 s
# The page is answered by a server, or by the file that it is in. Where little differs, the second can wait.
both = pytest.mark.parametrize("at", ["server", "file"], indirect=True)
both_at_last = pytest.mark.parametrize("at", ["server", *slowly("file")], indirect=True)
PHONE = {"width": 360, "height": 740}
AXE = Path(os.environ.get("NODE_PATH", "node_modules"), "axe-core/axe.min.js")  # of npm
with_axe = pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm install axe-core")
READY = {  # what is there once a view is
    "write": ".path button",
    "attention": ".grid canvas",
    "lens": "#lens td",
    "loss": "#loss circle",
    "run": "#run-figures dd",
}
VIEWS = list(READY)


def found_by_axe(page):
    """Return what breaks axe-core's rules."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    return [(x["id"], [node["html"] for node in x["nodes"]]) for x in found]


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


def press(page, name, text):
    """Press a button, which leaves the page with a text."""
    button(page, name).click()
    expect(page.locator("div.text")).to_have_text(text + "▸")


def kept(page):
    """Open the history, and return its texts."""
    button(page, "History").click()
    return page.locator(".kept button.plain")


def take(choice):
    """Go on with another token, and return its text."""
    text = choice.locator("code").inner_text().replace("␣", " ").replace("⏎", "\n")
    choice.click()
    return text


def write(page, text, tokens=20, seed=1):
    """Write with the page from a beginning; return when all is there, with what could have stood where."""
    page.get_by_label("Tokens", exact=True).fill(str(tokens))
    page.get_by_label("Seed").fill(str(seed))
    page.locator("#area").fill(text)
    button(page, "Write").click()
    written(page, tokens)


def written(page, tokens=20):
    page.wait_for_selector(f".message:has-text('{tokens} tokens in')")
    known = "#place .choice, #place:has-text('no longer')"
    page.wait_for_selector(known, state="attached")  # on a phone it is not open


def show(page, text):
    """Give the page a text."""
    if not page.locator("#area").is_visible():
        button(page, "Edit").click()
    page.locator("#area").fill(text)
    button(page, "Done").click()
    expect(page.locator("div.text > .token")).to_have_count(len(text) + 1)


def text_of(page):
    """The text that the tokens spell."""
    return "".join(page.locator("div.text > .token").all_text_contents()).removesuffix("▸")


def focused(page, what="aria-label"):
    return page.evaluate(
        f"() => document.activeElement.getAttribute('{what}') ?? document.activeElement.tagName"
    )


def chosen(page):
    """The index of the chosen token."""
    return page.evaluate(
        "() => [...document.querySelectorAll('div.text > .token')].findIndex((x) => x.ariaCurrent)"
    )


def chosen_head(page):
    """The name of the head that Attention shows."""
    return page.locator("#attention .grid button[aria-pressed=true]").get_attribute("aria-label")
