"""The page as a file, where it differs from the server's: what it lacks, and how it is written."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import export
from common.errors import UserError
from data.tokenizer import CharTokenizer
from data.writer import load_tokenizer
from model import GPTConfig
from tests.helpers import contents
from tests.models import large
from tests.tools.serving.on_page import PHONE, button, expect, show, text_of, written
from tools.serving.html_file import html


@pytest.fixture
def at(model_file):
    return model_file


def test_it_works_offline_and_has_no_part_of_what_it_lacks(open_page):
    page = open_page(offline=True, empty=False)
    tabs = page.locator("[role=tab]:visible").all_text_contents()
    assert tabs == ["Write", "Attention", "Logit lens", "Loss"]
    page.keyboard.press("Control+Enter")
    written(page, 100)
    page.click("#tab-loss")
    page.wait_for_selector("#loss .figures dt:has-text('bits per token')")
    assert not page.locator("#loss :is(#slider, #replay, #other, .chart):visible").count()
    assert "slider" not in page.locator(".lead[data-view=loss]").inner_text()
    assert page.title() == "model · nanoJAXGPT"
    page.evaluate("() => { location.hash = '#/chat'; }")  # whoever asks for it is told
    page.wait_for_selector("#chat-lacks:has-text('no chat template')")


def test_writing_stops_in_the_middle(page):
    show(page, "the ")
    page.get_by_label("Tokens", exact=True).fill("1024")
    page.evaluate(
        """() => new MutationObserver((_, observer) => {
            if (document.getElementById("go").textContent !== "Stop") return;
            document.getElementById("go").click();
            observer.disconnect();
        }).observe(document.getElementById("tokens"), { childList: true })"""
    )
    button(page, "Write").click()
    page.wait_for_selector(".message:has-text('stopped after')")
    assert len(text_of(page)) < 1024


def test_a_damaged_file_says_so_on_a_phone(open_page, at, tmp_path):
    (tmp_path / "model.html").write_text(Path(at.removeprefix("file://")).read_text()[:-2000])
    address = (tmp_path / "model.html").as_uri()
    page = open_page(at=address, empty=False, shows="This file is damaged", viewport=PHONE)
    assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"]


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"to": "here.html"}, "--to=.* is there already"),
        ({"to": "new"}, "--to=.*/new: give a file that browsers open, as in --to=my-model.html"),
        ({"format": "peft"}, "--weights=int8: --format=peft writes float32: leave it out"),
        ({"most": 9000}, "9,360 parameters are more than the 9,000 that a browser .* serve.py"),
    ],
)
def test_a_file_that_cannot_be_written_costs_a_line(run, tmp_path, monkeypatch, wrong, said):
    (tmp_path / "here.html").write_text("mine")
    asked = {"to": "new.html", "format": "html", "most": export.MOST_ON_A_PAGE} | wrong
    monkeypatch.setattr(export, "MOST_ON_A_PAGE", asked["most"])
    words = [f"--out_dir={run}", f"--to={tmp_path / asked['to']}", f"--format={asked['format']}"]
    with pytest.raises(UserError, match=said):
        export.main([*words, "--weights=int8"])
    assert contents(tmp_path) == {"here.html": b"mine"}


SMALL = GPTConfig(block_size=16, n_layer=1, n_head=1, n_embd=8, position="rope", window=3)


def page_of(folder, tokenizer):
    """The address of a file with a small model of a tokenizer."""
    model = large(replace(SMALL, vocab_size=tokenizer.vocab_size), None)
    known = {"name": "small", "version": "iter-1", "example": []}
    (folder / "model.html").write_text(html(model, known, tokenizer, "bfloat16")[0])
    return (folder / "model.html").as_uri()


def test_what_a_window_hides_has_no_part_in_the_arithmetic(open_page, tmp_path):
    address = page_of(tmp_path, CharTokenizer("abcdef"))
    page = open_page("attention?t=0.1.2.3.4.5&at=5&read=1", at=address, empty=False)
    page.wait_for_selector(".arithmetic")
    told = page.locator(".arithmetic").inner_text()
    assert "the 3 tokens up to" in told and "e^(−∞ − " in told and re.search(r": 0 / \S+ = 0\n", told)


def test_a_byte_that_is_chosen_ends_its_character(open_page, tmp_path, tokenizer_json):
    tokenizer = load_tokenizer(str(tokenizer_json))
    address = page_of(tmp_path, tokenizer)
    text = ".".join(np.base_repr(i, 36).lower() for i in tokenizer.encode("a–").tolist())
    page = open_page(f"write?max_tokens=1&t={text}&at=3", at=address, empty=False)
    bytes_that_end = page.locator("code", has_text=re.compile(r"^bytes:\\x[89ab].$"))
    choice = page.locator("#place button.choice").filter(has=bytes_that_end).first
    byte = int(choice.locator("code").inner_text()[-2:], 16)
    choice.click()
    expect(page.locator("#tokens .token").nth(3)).to_have_text(bytes([0xE2, 0x80, byte]).decode())


def test_a_file_that_comes_by_http_is_read_too(open_page, browser, at):
    context = browser.new_context()
    context.add_init_script("Object.defineProperty(crypto, 'subtle', { value: undefined })")  # as there
    open_page(at=at, empty=False, context=context).wait_for_selector(".by:has-text('An example')")
    context.close()
