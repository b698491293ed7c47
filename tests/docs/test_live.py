"""The page that chapters open is made of its data, and what they open it at is there."""

import base64
import hashlib
import json
import re
import shutil
from urllib.parse import parse_qs

import pytest

from docs.live.__main__ import TOLD, WEIGHTS, built
from docs.pages import BOOK, DOCS, LIVE, chapters

OPENED = [(path.stem, place) for path in chapters() for place in LIVE.finditer(path.read_text())]


def test_the_page_is_made_of_its_data():
    data = dict(re.findall(r'<script type="text/plain" id="(\w+)">(.*?)</script>', built()))
    told, weights = json.loads(TOLD.read_text()), WEIGHTS.read_bytes()
    assert json.loads(data["served"]) == told
    assert base64.b64decode(data["weights"]) == weights
    assert bytes(told["sha256"]) == hashlib.sha256(weights).digest()


def test_every_place_of_a_chapter_that_opens_it_is_known():
    assert sum(path.read_text().count('class="live"') for path in chapters()) == len(OPENED) == 4


@pytest.mark.parametrize("name, place", OPENED, ids=[name for name, _ in OPENED])
def test_what_a_chapter_opens_is_there(name, place):
    """A view, and a text of the vocabulary, with the chosen place and head in it, as in page/store.js."""
    config = json.loads(TOLD.read_text())["shown"]["config"]
    view, _, search = place["hash"].removeprefix("#/").partition("?")
    known = {key: value for key, [value] in parse_qs(search, strict_parsing=True).items()}
    ids = [int(token, 36) for token in known.pop("t").split(".")]
    assert view in ("write", "attention", "lens", "loss")
    assert max(ids) < config["vocab_size"] and len(ids) <= config["block_size"]
    limits = {"at": len(ids), "from": len(ids), "layer": config["n_layer"] - 1, "head": config["n_head"] - 1}
    assert {key for key, value in known.items() if float(value) > limits.get(key, 2)} == set()
    assert known.keys() <= {*limits, "temperature"}


def test_a_frame_with_the_model_takes_the_place_of_the_picture(watched_page, tmp_path):
    """Chapter 2 says what the model gives a character: the model in the frame says so too."""
    place = dict(OPENED)["02-loss"]
    picture = f'<p><img src="{place["image"]}" alt="a sentence"></p>'
    for folder in ("interactive", "images"):
        shutil.copytree(DOCS / folder, tmp_path / folder)
    for folder in ("live", "book"):
        (tmp_path / folder).mkdir()
    (tmp_path / "live/quickstart.html").write_text(built())
    (tmp_path / "book/chapter.html").write_text(
        '<link rel="stylesheet" href="../interactive/book.css">'
        + re.sub(r"!\[.*\*\n", picture, place[0], flags=re.S)
        + '<script src="../interactive/live.js"></script>'
    )
    page = watched_page("file:")
    page.goto((tmp_path / "book/chapter.html").as_uri())
    frame = page.get_by_title("a sentence")
    told = frame.content_frame.locator(".place .what").inner_text()
    said = re.search(
        r"after `probab`, the `i` has a probability of (\d+)%", (BOOK / "02-loss.md").read_text()
    )
    assert said and round(float(re.search(r"gave it ([\d.]+)%", told)[1])) == int(said[1])
    assert not page.locator("img").is_visible()
    page.emulate_media(media="print")
    assert page.locator("img").is_visible() and not frame.is_visible()
