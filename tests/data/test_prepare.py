"""Each data set's prepare.py: what it keeps of its source, how it splits, and what it says when it cannot."""

import gzip
import importlib
import json
import os
import string
import urllib.error
from unittest.mock import Mock

import numpy as np
import pytest

from common.errors import UserError
from data.prepare import prepare
from data.tokenizer import from_json
from tests.helpers import ROOT, error_line, refusal, run_python

book_char = importlib.import_module("data.book_char.prepare")
python_char = importlib.import_module("data.python_char.prepare")
shakespeare = importlib.import_module("data.shakespeare.prepare")
shakespeare_char = importlib.import_module("data.shakespeare_char.prepare")

PRINTABLE = "\n" + "".join(sorted(set(string.printable) - set("\n\t\r\v\f")))


def read(folder):
    """(meta, train ids, val ids) as they are on disk."""
    meta = json.loads((folder / "meta.json").read_text())
    return meta, *(np.fromfile(folder / f"{split}.bin", "<u2") for split in ("train", "val"))


def text_of(folder):
    meta, train, val = read(folder)
    return from_json(meta["tokenizer"]).decode(np.concatenate([train, val]))


def test_the_book_is_what_its_file_holds(tmp_path):
    book_char.prepare(tmp_path)
    text = gzip.decompress(book_char.TEXT.read_bytes()).decode("ascii")
    meta, train, val = read(tmp_path)
    assert text_of(tmp_path) == text and "\n==> model.py <==\n" in text
    assert len(train) == int(0.9 * len(text)) and meta["counts"] == {"train": len(train), "val": len(val)}
    assert meta["tokenizer"]["symbols"] == PRINTABLE


def test_a_missing_or_damaged_text_of_the_book_is_one_line(tmp_path, monkeypatch):
    whole = book_char.TEXT.read_bytes()
    monkeypatch.setattr(book_char, "TEXT", path := tmp_path / "text.gz")
    for content in (None, whole[:-1]):
        if content:
            path.write_bytes(content)
        said = refusal(book_char.prepare, tmp_path / "set")
        assert said == f"{path}: missing or damaged: take the file from the repository again"
        assert not (tmp_path / "set").exists()


def test_python_keeps_printable_ascii_in_the_order_of_file_names(tmp_path, capsys):
    source = tmp_path / "source"
    (source / "package").mkdir(parents=True)
    (source / "b.py").write_text("\tb = 'é'\f\n", encoding="utf-8")
    (source / "a.py").write_text("a = 1\n")
    (source / "c.txt").write_text("not python")
    (source / "package" / "d.py").write_text("not at the top")
    python_char.prepare(tmp_path / "set", str(source))
    assert text_of(tmp_path / "set") == "a = 1\n    b = ''\n"
    meta, train, val = read(tmp_path / "set")
    assert meta["tokenizer"]["symbols"] == PRINTABLE
    assert (len(train), len(val)) == (15, 2)
    assert "without 2 characters" in capsys.readouterr().out
    assert "no tokens for train.bin" in refusal(python_char.prepare, tmp_path / "none", str(tmp_path))
    assert not (tmp_path / "none").exists()


def test_shakespeare_is_split_as_nanogpt_does(tmp_path, capsys):
    symbols = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase
    text = (symbols * 17160)[:1_115_394]
    (tmp_path / "input.txt").write_text(text)
    shakespeare_char.prepare(tmp_path / "set", str(tmp_path / "input.txt"))
    meta, train, val = read(tmp_path / "set")
    assert meta["tokenizer"] == {"type": "char", "symbols": symbols}
    assert (len(train), len(val)) == (1_003_854, 111_540)
    assert text_of(tmp_path / "set") == text
    assert "1,003,854 train and 111,540 validation" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"a\r\nb\rc\n\xc3\xa0", b"\xef\xbb\xbfa\nb\nc\r\n\xc3\xa0"])
def test_a_text_is_read_as_nanogpt_reads_it_in_text_mode(tmp_path, tokenizer_json, content):
    """Newlines become \\n, as in `open(path, "r")`; and no character is a byte-order mark."""
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    expected = path.open("r", encoding="utf-8-sig").read()
    shakespeare_char.prepare(tmp_path / "set", str(path))
    assert text_of(tmp_path / "set") == expected == "a\nb\nc\nà"
    shakespeare.prepare(tmp_path / "tokens", str(path), tokenizer=str(tokenizer_json))
    assert text_of(tmp_path / "tokens") == expected


@pytest.mark.parametrize(
    "content, says",
    [
        ("déjà vu".encode("latin-1"), "not UTF-8 at byte 1: "),  # other encodings: test_sources.py
        (b"", "0 characters are too few to split"),
        (b"x", "1 characters are too few to split"),
        (None, "cannot be read (["),  # it is a folder
    ],
)
def test_a_text_that_cannot_be_prepared_is_named(tmp_path, content, says):
    path = tmp_path
    if content is not None:
        (path := tmp_path / "mine.txt").write_bytes(content)
    assert refusal(shakespeare_char.prepare, tmp_path / "set", str(path)).startswith(f"{path}: {says}")
    assert not (tmp_path / "set").exists()


def test_a_url_is_a_source_too(tmp_path, monkeypatch):
    (tmp_path / "input.txt").write_text("from a server")
    urlopen = shakespeare_char.urllib.request.urlopen
    local = Mock(side_effect=lambda url, timeout: urlopen((tmp_path / "input.txt").as_uri()))
    monkeypatch.setattr(shakespeare_char.urllib.request, "urlopen", local)
    shakespeare_char.prepare(tmp_path / "set", "https://example.org/input.txt")
    assert local.call_args.args == ("https://example.org/input.txt",)
    assert text_of(tmp_path / "set") == "from a server"

    with pytest.raises(UserError, match="sha256 differs"):  # by default it must be the real one
        shakespeare_char.prepare(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_offline_shakespeare_says_what_to_do(tmp_path, monkeypatch):
    offline = Mock(side_effect=urllib.error.URLError("no route to host"))
    monkeypatch.setattr(shakespeare_char.urllib.request, "urlopen", offline)
    said = refusal(shakespeare_char.prepare, tmp_path / "set")
    assert "--source=<path>" in said and "config/quickstart.py" in said
    assert not (tmp_path / "set").exists()


def test_the_command_ends_in_one_line(tmp_path):
    missing = str(tmp_path / "missing")
    done = run_python(ROOT / "data/shakespeare/prepare.py", f"--source={missing}", cwd=tmp_path)
    assert done.returncode == 2 and missing in error_line(done.stderr) and done.stderr.count("\n") == 1


def test_another_text_goes_where_to_says_and_a_missing_folder_or_source_is_named(tmp_path):
    (tmp_path / "mine.txt").write_text("zebra à la carte", encoding="utf-8")
    shakespeare_char.main([f"--source={tmp_path / 'mine.txt'}", f"--to={tmp_path / 'set'}"])
    assert text_of(tmp_path / "set") == "zebra à la carte"
    assert read(tmp_path / "set")[0]["tokenizer"]["symbols"] == "".join(sorted(set("zebra à la carte")))
    for words in ([], [f"--source={tmp_path / 'mine.txt'}"], ["--to=x"]):
        assert refusal(prepare, words).startswith("--source=<files> and --to=<folder> are needed")


@pytest.mark.skipif("TIKTOKEN_CACHE_DIR" not in os.environ, reason="needs GPT-2's vocabulary")
@pytest.mark.skipif("TINY_SHAKESPEARE" not in os.environ, reason="needs the path of the text")
def test_shakespeare_has_nanogpts_number_of_tokens(tmp_path):
    shakespeare.prepare(tmp_path / "set", os.environ["TINY_SHAKESPEARE"])
    meta, train, val = read(tmp_path / "set")
    assert (len(train), len(val)) == (301_966, 36_059)
    assert meta["tokenizer"] == {"type": "tiktoken", "name": "gpt2"} and meta["vocab_size"] == 50257
