"""The site builds without a warning, and in a browser asks no other host for anything."""

import importlib.util
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from docs.pages import DOCS, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("zensical") is None or importlib.util.find_spec("mkdocstrings") is None,
        reason="the site's builder is not installed: pip install -r requirements-docs.txt",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site, which a copy of the project has built, on a server of this test's."""
    copy = tmp_path_factory.mktemp("copy") / "project"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "out*", "site", "*.bin", "wandb")
    shutil.copytree(ROOT, copy, ignore=left_out)
    shutil.copy(ROOT / "docs/live/weights.bin", copy / "docs/live")
    subprocess.run([sys.executable, "-m", "docs.live"], cwd=copy, check=True)
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=copy, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    handler = partial(SimpleHTTPRequestHandler, directory=copy / "site")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(watched_page, site):
    return watched_page(site)


def test_every_page_opens_with_its_images_and_asks_no_other_host(site, page):
    for path in sorted(DOCS.rglob("*.md")):
        built = path.with_stem("index") if path.stem == "README" else path
        page.goto(f"{site}/{built.relative_to(DOCS).with_suffix('.html')}")
        assert page.locator("article h1").count() == 1, path
        broken = (
            "[...document.querySelectorAll('article img')].filter(i => i.complete && !i.naturalWidth).length"
        )
        assert page.evaluate(broken) == 0, path


def test_the_reference_shows_signatures_and_fields_as_the_code_writes_them(site, page):
    page.goto(f"{site}/reference/model.html")
    text = page.locator("article").inner_text()
    written = ('logits: Float[Array, "B T V"]', 'weight: Float[Array, "i *o"]', "# D -> (H, C)")
    assert [part for part in written if part not in text] == []
