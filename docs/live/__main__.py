"""Make docs/live/quickstart.html, which chapters open: serve.py's page with the quickstart's model in it.

    python -m docs.live                             of the data beside this file, before a build of the site
    python -m docs.live --out_dir=out-quickstart    of a run, whose data take their place
    python -m docs.live --measure=True              and say how fast it writes in headless Chromium

served.json is what the page knows of the model, tokenizer included; weights.bin are its arrays, most in int8.
"""

from common.errors import command  # isort: split

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from common.command_line import Name, given
from common.files import write_whole
from docs.pages import DOCS, ROOT
from tools.serving.html_file import assembled

LIVE = DOCS / "live"
PAGE = LIVE / "quickstart.html"
TOLD, WEIGHTS = LIVE / "served.json", LIVE / "weights.bin"


@dataclass(frozen=True)
class LiveOptions:
    """Every option of docs.live. A field's comment is its text in `--help`."""

    program: ClassVar[str] = "-m docs.live"
    purpose: ClassVar[str] = "Make the page that chapters open."

    out_dir: Name | None = None  # folder of a run, whose data replace those in docs/live
    measure: bool = False  # open the page in Chromium, from the disk, and time its writing


def main(argv: list[str]) -> None:
    options = LiveOptions(**given(argv, LiveOptions))
    if options.out_dir is not None:
        keep(options.out_dir)
    write_whole(PAGE, built())
    print(PAGE.relative_to(ROOT))
    if options.measure:
        measure()


def built() -> str:
    return assembled(json.loads(TOLD.read_text()), WEIGHTS.read_bytes())


def keep(out_dir: str) -> None:
    """Keep the data that export.py puts into a run's page. Ends as export.py does, if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PAGE.name
        options = [f"--out_dir={out_dir}", f"--to={path}", "--format=html", "--weights=int8"]
        if status := subprocess.run([sys.executable, ROOT / "export.py", *options]).returncode:
            sys.exit(status)
        data = dict(re.findall(r'<script type="text/plain" id="(\w+)">(.*?)</script>', path.read_text()))
    TOLD.write_text(data["served"] + "\n")
    WEIGHTS.write_bytes(base64.b64decode(data["weights"]))


# When the page has its model it writes. Its clock begins when it is opened.
FIRST_TOKEN = """async () => {
    const frame = () => new Promise(requestAnimationFrame);
    const tokens = () => document.querySelectorAll("#tokens .token");
    while (!document.getElementById("by").textContent) await frame();
    const before = tokens().length;
    document.getElementById("go").click();
    while (tokens().length <= before) await frame();
    return performance.now();
}"""


def measure() -> None:
    """Print how soon after its opening the page has a first token, and how many it writes a second."""
    from playwright.sync_api import sync_playwright  # here: a build of the site has none

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for _ in range(3):
            page = browser.new_context(offline=True).new_page()
            page.goto(f"{PAGE.as_uri()}#/write?max_tokens=1000")
            seconds = page.evaluate(FIRST_TOKEN) / 1000
            page.wait_for_selector("#message:has-text('a second')")
            print(f"first token after {seconds:.2f} s; {page.locator('#message').inner_text()}")
            page.close()


if __name__ == "__main__":
    command(main)
