"""Make docs/live/quickstart.html, which chapters open: serve.py's page with the quickstart's model in it.

    python -m docs.live                     of the data beside this file, before a build of the site
    python -m docs.live out-quickstart      of a run, whose data take their place

served.json is what the page knows of the model, tokenizer included; weights.bin are its arrays, most in int8.
"""

from common.errors import command  # isort: split

import base64
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from common.files import write_whole
from docs.pages import DOCS, ROOT
from tools.serving.html_file import assembled

LIVE = DOCS / "live"
PAGE = LIVE / "quickstart.html"
TOLD, WEIGHTS = LIVE / "served.json", LIVE / "weights.bin"


def main(folders: list[str]) -> None:
    for folder in folders:
        keep(folder)
    write_whole(PAGE, built())
    print(PAGE.relative_to(ROOT))


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


if __name__ == "__main__":
    command(main)
