"""The pictures of serve.py's page in docs/images: each shows where a few clicks lead.

    python -m docs.page_pictures

It takes Playwright and chromium, and trains the two runs that the pictures show, if they are not there.
"""

import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

from docs.pages import ROOT

TEXT = """def read(self, size=-1):
    if size < 0:
        size = self._size
    return self.file.read(size)
"""
WORD = TEXT.index("file") + 1  # the chosen character: an `i`
RUNS: dict[str, list[str]] = {"out-quickstart": [], "out-seed-1": ["--seed=1"]}


@contextmanager
def served() -> Generator[str]:
    """Serve both runs, and yield the address."""
    for name, options in RUNS.items():
        if not (ROOT / name / "checkpoints").is_dir():
            command = [sys.executable, "train.py", "config/quickstart.py", f"--out_dir={name}", *options]
            subprocess.run(command, cwd=ROOT, check=True)
    first, second = RUNS
    command = [sys.executable, "serve.py", f"--out_dir={first}", f"--beside={second}", "--port=0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            address = next(line.split()[-1] for line in server.stdout if line.startswith("serving "))
            next(line for line in server.stdout if line.startswith("compiled "))  # and says so no more
            yield address
        finally:
            server.terminate()


def picture(page: Page, name: str, ready: str) -> None:
    """Take a picture once the page shows all of it."""
    page.wait_for_selector(ready)
    page.mouse.move(0, 0)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=ROOT / "docs" / "images" / f"page-{name}.png", full_page=True)
    print(f"docs/images/page-{name}.png")


def take(page: Page) -> None:
    page.wait_for_selector(".place .choice")
    page.wait_for_selector("#status:empty", state="attached")  # all is compiled
    page.keyboard.type("d")  # a text of one's own begins
    page.locator("#area").fill(TEXT)
    page.click("#edit")
    page.locator("#tokens .token").nth(WORD).click()
    picture(page, "write", ".path button")
    page.click("#tab-attention")
    page.wait_for_selector("#most:has-text('this head attended to')")
    page.locator("#frame").focus()
    page.keyboard.press("ArrowLeft")
    picture(page, "attention", ".arithmetic")
    page.click("#tab-lens")
    picture(page, "lens", "#lens td.chosen")
    page.click("#tab-loss")
    page.locator("#other").select_option("iter-50")
    picture(page, "loss", "#loss-chart circle:nth-of-type(80)")
    page.locator("#other").select_option("out-seed-1 (beside)/iter-1000")
    page.click("#both")
    picture(page, "runs", "#pair-texts .token")
    page.click("#tab-run")
    picture(page, "run", "#run-figures dd")


if __name__ == "__main__":
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(120_000)
        page.goto(address)
        take(page)
        browser.close()
