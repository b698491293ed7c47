"""describe_chars.py: character data that nanoGPT prepared can be trained on, and nothing is unpickled."""

import json
import pickle
import re
import shlex

import numpy as np
import pytest

from data import dataset, describe_chars
from data.batches import Batches
from data.dataset import Dataset, load_meta
from data.tokenizer import from_json
from tests.helpers import contents, refusal, run_python

TEXT = "To be, or not to be: thät is the question.\n" * 30


def prepare_as_nanogpt(folder, text=TEXT, share=0.9):
    """Prepare input.txt as nanoGPT's data/shakespeare_char/prepare.py does."""
    folder.mkdir(parents=True)
    (folder / "input.txt").write_text(text, encoding="utf-8")
    with open(folder / "input.txt", encoding="utf-8") as file:
        data = file.read()
    chars = sorted(set(data))
    stoi = {ch: i for i, ch in enumerate(chars)}
    itos = dict(enumerate(chars))
    n = len(data)
    for split, some in (("train", data[: int(n * share)]), ("val", data[int(n * share) :])):
        np.array([stoi[c] for c in some], dtype=np.uint16).tofile(folder / f"{split}.bin")
    with open(folder / "meta.pkl", "wb") as file:
        pickle.dump({"vocab_size": len(chars), "itos": itos, "stoi": stoi}, file)
    return folder


@pytest.fixture
def folder(tmp_path):
    return prepare_as_nanogpt(tmp_path / "mine")


def describe(folder, *argv):
    describe_chars.main([f"--dataset={folder}", *map(str, argv)])


def refused(folder, *argv):
    """The one line with which it is refused; nothing is written then."""
    before = contents(folder)
    text = refusal(describe, folder, *argv)
    assert contents(folder) == before
    return text


def test_the_command_that_the_loader_names_makes_the_data_readable(folder, tmp_path):
    before = contents(folder)
    text = refusal(load_meta, str(folder))
    assert text.startswith(f"{folder}/meta.pkl: a pickle can run code")
    python, *words = shlex.split(re.search("`(.*)`", text)[1])
    done = run_python(*words, cwd=tmp_path)
    assert python == "python" and done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}/meta.json: 18 symbols, 1,161 train and 129 validation tokens\n"

    after = contents(folder)
    described = json.loads(after.pop("meta.json"))
    assert after == before
    meta = load_meta(str(folder))
    assert (meta.vocab_size, meta.dtype, meta.counts) == (18, "uint16", {"train": 1161, "val": 129})
    tokenizer = from_json(meta.tokenizer)
    ids = [np.fromfile(folder / f"{split}.bin", "<u2") for split in ("train", "val")]
    assert tokenizer.decode(np.concatenate(ids)) == TEXT
    x, _ = Batches(Dataset(str(folder)), "train", 1, 8, seed=0)(0)
    assert tokenizer.decode(x[0]) in TEXT
    assert described["source"] == str(folder / "input.txt")


def test_it_is_what_our_own_preparation_writes(folder, tmp_path):
    """But for the words about the source."""
    from data.shakespeare_char.prepare import prepare

    describe(folder)
    prepare(tmp_path / "ours", str(folder / "input.txt"))
    for split in ("train", "val"):
        assert (folder / f"{split}.bin").read_bytes() == (tmp_path / "ours" / f"{split}.bin").read_bytes()
    ours, described = (json.loads((path / "meta.json").read_text()) for path in (tmp_path / "ours", folder))
    assert described == ours


def test_a_name_below_data_and_a_text_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "DATA", tmp_path / "data")
    folder = prepare_as_nanogpt(tmp_path / "data" / "mine")
    text = (folder / "input.txt").rename(tmp_path / "elsewhere.txt")
    assert "--source=<the text it was made of>" in refusal(load_meta, "mine")
    describe("mine", f"--source={text}")
    assert load_meta("mine").vocab_size == 18


def test_ends_of_lines_are_read_as_nanogpt_reads_them(tmp_path):
    folder = prepare_as_nanogpt(tmp_path / "mine", share=0.5)
    (folder / "input.txt").write_bytes(TEXT.replace("\n", "\r\n").encode())
    describe(folder)
    meta = load_meta(str(folder))
    assert "\r" not in meta.tokenizer["symbols"] and meta.counts == {"train": 645, "val": 645}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "!",
        lambda text: text[:-1],
        lambda text: text[:-1] + "x",  # "x" comes before "ä", whose number is 1 more with it
        lambda text: "b" + text[1:],
        lambda text: text[:1289] + " ",
    ],
)
def test_another_text_is_refused(folder, change):
    source = folder / "input.txt"
    source.write_text(change(TEXT), encoding="utf-8")
    says = f"the 1,290 tokens of train.bin and val.bin are not the {len(change(TEXT)):,} characters of "
    assert f"{says}{source}: give the text" in refused(folder)


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("input.txt", None, "No such file or directory"),
        ("input.txt", b"\xff", "invalid start byte"),
        ("input.txt", b"", "a character vocabulary needs"),
        ("train.bin", None, "No such file or directory"),
        ("val.bin", b"\0", "multiple of element size"),
    ],
)
def test_files_that_cannot_be_are_named(folder, name, content, says):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    text = refused(folder)
    assert text.startswith(str(folder)) and says in text
