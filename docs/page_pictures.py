"""The pictures of serve.py's page in docs/images: where a few clicks lead, and what chapters open.

    python -m docs.page_pictures    after python -m docs.live; trains the quickstart, if it is not there

It takes Playwright and chromium.
"""

import shutil

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from config.options import Options
from docs.figures import IMAGES, quickstart
from docs.live.__main__ import PAGE
from docs.pages import LIVE, chapters
from tools.benchmarks.generation import serving

TEXT = """def read(self, size=-1):
    if size < 0:
        size = self._size
    return self.file.read(size)
"""
WORD = TEXT.index("file") + 1  # the chosen character: an `i`
READY = {  # by the view: what it has when it is complete
    "write": ".path button",
    "attention": "#most:has-text('this head attended to')",
    "lens": "#lens td.chosen",
    "loss": "#loss-figures dd",
}


def picture(page: Page, name: str, ready: str) -> None:
    """Take a picture once the page shows all of it."""
    page.wait_for_selector(ready)
    page.mouse.move(0, 0)
    page.wait_for_load_state("networkidle")
    path = IMAGES / f"page-{name}.png"
    page.screenshot(path=path, full_page=True)
    with Image.open(path) as taken:
        few = taken.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(path, optimize=True)  # a third as large
    print(f"docs/images/{path.name}")


def take(page: Page) -> None:
    page.wait_for_selector(".place .choice")
    page.wait_for_selector("#status:empty", state="attached")  # all is compiled
    page.keyboard.type("d")  # a text of one's own begins
    page.locator("#area").fill(TEXT)
    page.click("#edit")
    page.locator("#tokens .token").nth(WORD).click()
    picture(page, "write", READY["write"])
    page.click("#tab-attention")
    page.wait_for_selector(READY["attention"])
    page.locator("#frame").focus()
    page.keyboard.press("ArrowLeft")
    picture(page, "attention", ".arithmetic")
    page.click("#tab-lens")
    picture(page, "lens", READY["lens"])
    page.click("#tab-loss")
    page.locator("#other").select_option("iter-50")
    picture(page, "loss", "#loss-chart circle:nth-of-type(40)")  # two curves of all 20 checkpoints
    page.click("#tab-run")
    picture(page, "run", "#run-figures dd")


def take_live(page: Page) -> None:
    """Take what chapters open, as wide as it is there."""
    page.set_viewport_size({"width": 900, "height": 600})
    for place in LIVE.finditer("".join(chapter.read_text() for chapter in chapters())):
        page.goto(PAGE.as_uri() + place["hash"])
        page.reload()  # a new hash alone would keep what was opened before
        view = place["hash"].removeprefix("#/").partition("?")[0]
        page.wait_for_selector(".place .choice")
        picture(page, f"{view}-live", READY[view])


if __name__ == "__main__":
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(120_000)
        with serving(Options(out_dir=str(quickstart()))) as (address, _):
            page.goto(address)
            take(page)
        take_live(page)
        browser.close()
