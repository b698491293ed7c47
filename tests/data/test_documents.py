"""Documents to data sets: the tokens, the split, what a kill leaves and what the same command makes of it."""

import json
import os
import re
import runpy
import sys
import textwrap
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tokenizers

from data import documents, sources, train_tokenizer, writer
from data.dataset import Batches, Dataset, load_meta
from data.documents import begin_tokenizing, write_documents
from data.prepare import prepare
from data.sources import DocumentBatch, Files
from data.tokenizer import from_json
from data.writer import load_tokenizer
from tests.helpers import ROOT, contents, refusal, run_python

TEXTS = [f"the story of {i}: €\n" + "and then the other thing\n" * (i % 9) for i in range(400)]
VAL = 0.25


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return Files([str(path)])


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(sources, "BATCH", 2000)


def tokens(folder, split):
    meta = load_meta(str(folder))
    return np.fromfile(folder / f"{split}.bin", meta.dtype)


def stories(folder, *splits):
    """The documents of the splits (by default both, sorted), as text."""
    if not splits:
        return sorted(stories(folder, "train") + stories(folder, "val"))
    ids = tokens(folder, *splits)
    assert ids[-1] == 0  # end-of-text
    tokenizer = from_json(load_meta(str(folder)).tokenizer)
    ends = np.flatnonzero(ids == 0)
    return [tokenizer.decode(some[:-1]) for some in np.split(ids, ends + 1)[:-1]]


@pytest.fixture
def write(tmp_path, source, tokenizer_json):
    """`write()` prepares the documents of `source` in tmp_path / "set", and returns that."""

    def write(name="set", paths=source.paths, tokenizer=tokenizer_json, val_fraction=VAL, **settings):
        settings = {"num_proc": 1} | settings
        tokenizer = load_tokenizer(str(tokenizer))
        write_documents(tmp_path / name, Files(list(map(str, paths))), tokenizer, val_fraction, **settings)
        return tmp_path / name

    return write


def test_tokens_are_those_of_the_library_document_by_document(write, tokenizer_json, capsys):
    folder = write(num_proc=2)
    library = tokenizers.Tokenizer.from_file(str(tokenizer_json))
    assert stories(folder) == sorted(TEXTS)
    for split in ("train", "val"):
        some = stories(folder, split)
        assert some == sorted(some, key=TEXTS.index)  # in their order
        expected = [i for text in some for i in [*library.encode(text).ids, 0]]
        assert tokens(folder, split).tolist() == expected
        assert load_meta(str(folder)).counts[split] == len(expected)
    # A binomial of 400 draws at 1/4 has a standard deviation of 8.7: this is 5 of them.
    assert abs(len(stories(folder, "val")) - 100) < 43
    assert "400 documents" in capsys.readouterr().out
    assert contents(folder).keys() == {"meta.json", "train.bin", "val.bin"}
    assert contents(folder) == contents(write("one", num_proc=1))
    assert Batches(Dataset(str(folder)).tokens("val"), 2, 8, 1)(0)[0].shape == (2, 8)


def test_copies_stay_together_and_more_documents_move_none(tmp_path, write):
    (tmp_path / "a.txt").write_text("<|endoftext|>\n".join(TEXTS[:100]))
    (tmp_path / "b.txt").write_text("<|endoftext|>\n".join(TEXTS))
    before = stories(write("before", [tmp_path / "a.txt"]), "val")
    after = write("after", [tmp_path / "b.txt", tmp_path / "a.txt"])
    assert set(before) == set(stories(after, "val")) & set(TEXTS[:100])
    assert not set(stories(after, "val")) & set(stories(after, "train"))


def test_documents_without_text_are_counted_and_the_name_of_end_of_text_ends_none(tmp_path, write, capsys):
    """Other damages: test_sources.py."""
    texts = [f"{text}<|endoftext|>{text}" for text in TEXTS[:50]]
    lines = [*(json.dumps({"text": text}).encode() for text in texts), b"{", b'{"text": "\xff"}', b""]
    (tmp_path / "mixed.jsonl").write_bytes(b"\n".join(lines[20:] + lines[:20]))
    assert stories(write(paths=[tmp_path / "mixed.jsonl"])) == sorted(texts)
    assert ": 53 documents, 3 of them corrupt, empty or refused, " in capsys.readouterr().out


def test_a_stopped_command_goes_on_and_writes_what_it_would_have(tmp_path, write, monkeypatch, capsys):
    """It is stopped behind a file that got its name: a note of the progress, meta.json or a split's file."""
    monkeypatch.setattr(documents, "GROUP", 1)
    named, rename, stop_at = [], os.replace, 0

    def replace(one, other):
        rename(one, other)
        named.append(other)
        if len(named) == stop_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace)
    expected, n = contents(write("whole", limit=300)), len(named)
    for stop_at in (1, n - len(expected), n - len(expected) + 1, n - 1):
        named.clear()
        with pytest.raises(KeyboardInterrupt):
            write(str(stop_at), limit=300)
        folder, stop_at = tmp_path / str(stop_at), 0
        assert not (folder / "train.bin").exists()
        assert contents(write(folder.name, limit=300)) == expected
        assert "going on after" in capsys.readouterr().out


KILLED = """
    import os, signal, sys
    from data import documents, prepare
    documents.write_whole = lambda path, text: os.kill(os.getpid(), signal.SIGKILL)
    if __name__ == "__main__":
        prepare.prepare(sys.argv[1:])
"""


@pytest.mark.slow
def test_after_a_kill_its_processes_end_and_the_same_command_goes_on(tmp_path, source, write, tokenizer_json):
    (tmp_path / "program.py").write_text(textwrap.dedent(KILLED))
    words = [f"--source={source.paths[0]}", f"--tokenizer={tokenizer_json}", f"--val_fraction={VAL}"]
    words += [f"--to={tmp_path / 'set'}", "--num_proc=2"]
    # It returns when all who could write to its output are gone, its workers as well.
    assert run_python(tmp_path / "program.py", *words, PYTHONPATH=ROOT).returncode == -9
    assert contents(write("set")) == contents(write("whole"))


def test_another_command_does_not_go_on_with_what_a_stopped_one_left(tmp_path, source, write, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(documents, "publish", Mock(side_effect=KeyboardInterrupt))
        write()
    assert re.search(r"\.prepare\.json: of another command", refusal(write, val_fraction=0.5))
    before = contents(tmp_path / "set")
    Path(source.paths[0]).write_text('{"text": "the source has changed"}\n')
    assert "its source has changed" in refusal(write)
    assert contents(tmp_path / "set") == before


def test_damaged_progress_is_named(tmp_path, write):
    path = tmp_path / "set" / ".prepare.json"
    path.parent.mkdir()
    for content in ("", "{", "[1]", '{"position": 3}'):
        path.write_text(content)
        assert refusal(write).startswith(f"{path}: damaged (")


def test_two_groups_are_on_their_way_at_a_time(monkeypatch):
    monkeypatch.setattr(documents, "GROUP", 3)
    drawn = []

    def batches():
        for i in range(100):
            drawn.append(i)
            yield DocumentBatch([b"the text"], False, i)

    begun = begin_tokenizing(Mock(map=lambda function, group: [x.position for x in group]), batches())
    done = 0
    for group, results in begun:
        assert [batch.position for batch in group] == results == list(range(done, min(done + 3, 100)))
        done += len(group)
        assert len(drawn) <= done + 3
    assert done == 100


def test_a_split_without_documents_is_refused_and_leaves_nothing(tmp_path, write):
    (tmp_path / "two.txt").write_text("one\n<|endoftext|>\ntwo")
    for fraction in (1e-9, 1 - 1e-9):
        says = refusal(write, paths=[tmp_path / "two.txt"], val_fraction=fraction)
        assert re.search("two.txt: 2 documents.* leave none .*--val_fraction", says)
        assert not (tmp_path / "set").exists()


def test_the_last_tenth_of_a_single_text_validates_and_a_tenth_of_few_documents(
    tmp_path, tokenizer_json, monkeypatch
):
    text = "".join(TEXTS)
    (tmp_path / "mine.txt").write_text(text)
    (tmp_path / "few.txt").write_text("<|endoftext|>\n".join(TEXTS))
    folders = {name: tmp_path / name.partition(".")[0] for name in ("mine.txt", "few.txt")}
    for name, to in folders.items():
        words = [f"--source={tmp_path / name}", f"--to={to}", f"--tokenizer={tokenizer_json}"]
        prepare([*words, "--num_proc=1"])
    monkeypatch.setattr(writer, "PIECE", 300)  # so many characters are encoded at once, up to a line's end
    prepare([f"--source={tmp_path}/mine.txt", f"--to={tmp_path}/cut", f"--tokenizer={tokenizer_json}"])
    assert contents(tmp_path / "cut") == contents(tmp_path / "mine")
    tokenizer, cut = load_tokenizer(str(tokenizer_json)), int(0.9 * len(text))
    for split, part in (("train", text[:cut]), ("val", text[cut:])):
        assert tokens(folders["mine.txt"], split).tolist() == tokenizer.encode(part).tolist()
    assert 20 < len(stories(folders["few.txt"], "val")) < 60  # of 400, by their hashes
    assert stories(folders["few.txt"]) == sorted(TEXTS)


def test_a_folder_holds_a_tokenizer_or_a_data_set(tmp_path, source, tokenizer_json):
    words = [f"--source={source.paths[0]}", f"--to={tokenizer_json.parent}"]
    says = refusal(prepare, [*words, f"--tokenizer={tokenizer_json}"])
    assert says.endswith("holds a tokenizer: give the data set another")
    (tmp_path / "meta.json").touch()
    words = [f"--source={source.paths[0]}", f"--to={tmp_path}"]
    assert refusal(train_tokenizer.main, words).endswith("holds a data set: give the tokenizer another")


def test_a_value_that_cannot_be_is_named(tmp_path, source, tokenizer_json):
    described = json.loads(tokenizer_json.read_text())
    (endless := tmp_path / "endless.json").write_text(json.dumps(described | {"added_tokens": []}))
    words = [f"--source={source.paths[0]}", f"--to={tmp_path / 'set'}"]
    for name, value in (("limit", 0), ("val_fraction", 1), ("tokenizer", "none.json")):
        assert str(value) in refusal(prepare, [*words, f"--{name}={value}"])
    assert "--template is not used without --chat=True" in refusal(prepare, [*words, "--template=a"])
    assert "--num_proc is not used with" in refusal(prepare, [*words, "--num_proc=1", "--chat=True"])
    assert "end-of-text" in refusal(prepare, [*words, f"--tokenizer={endless}"])


@pytest.mark.parametrize("name", ["", "openwebtext", "tinystories", "fineweb_edu"])
def test_each_command_prepares_ones_own_files(tmp_path, source, tokenizer_json, name, monkeypatch, capsys):
    command = ROOT / "data" / name / "prepare.py"
    own_files = [f"--source={source.paths[0]}", "--to=mine", f"--tokenizer={tokenizer_json}"]
    own_files += ["--num_proc=1", "--val_fraction=0.25", "--limit=50"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(command), *own_files])
    runpy.run_path(str(command), run_name="__main__")
    assert "50 documents" in capsys.readouterr().out
    assert stories(tmp_path / "mine") == sorted(TEXTS[:50])
