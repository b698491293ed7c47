"""Documents to data sets: the tokens, the split, what a kill leaves and what the same command makes of it."""

import json
import os
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from config.command_line import UserError
from data import sources
from data.batches import Batches
from data.documents import Progress, load_progress, tokenize_in_parallel, write_documents
from data.meta import load_meta
from data.prepare import main
from data.sources import DocumentBatch, Files
from data.token_files import Dataset
from data.tokenizer import from_json, load_tokenizer
from tests.damage import assert_named
from tests.helpers import ROOT, refusal, run_python

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
    return np.concatenate([np.fromfile(folder / name, meta.dtype) for name, _ in meta.files(split)])


def stories(folder, split):
    """The documents of a split, as text."""
    ids = tokens(folder, split)
    assert ids[-1] == 0  # end-of-text
    tokenizer = from_json(load_meta(str(folder)).tokenizer)
    ends = np.flatnonzero(ids == 0)
    return [tokenizer.decode(some[:-1]) for some in np.split(ids, ends + 1)[:-1]]


def test_tokens_are_those_of_the_library_document_by_document(tmp_path, source, tokenizer_json, capsys):
    write_documents(tmp_path / "set", source, load_tokenizer(str(tokenizer_json)), VAL, num_proc=2)
    library = tokenizers.Tokenizer.from_file(str(tokenizer_json))
    found = {split: stories(tmp_path / "set", split) for split in ("train", "val")}
    assert sorted(found["train"] + found["val"]) == sorted(TEXTS)
    for split, some in found.items():
        assert some == sorted(some, key=TEXTS.index)  # in their order
        expected = [i for text in some for i in [*library.encode(text).ids, 0]]
        assert tokens(tmp_path / "set", split).tolist() == expected
        assert load_meta(str(tmp_path / "set")).counts[split] == len(expected)
    # A binomial of 400 draws at 1/4 has a standard deviation of 8.7: this is 5 of them.
    assert abs(len(found["val"]) - 100) < 43
    assert "400 documents" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "set").iterdir()} == {"meta.json", "train.bin", "val.bin"}
    assert Batches(Dataset(str(tmp_path / "set")), "val", 2, 8, 1)(0)[0].shape == (2, 8)


def test_the_number_of_processes_changes_nothing(tmp_path, source, tokenizer_json):
    for n in (1, 3):
        write_documents(tmp_path / str(n), source, load_tokenizer(str(tokenizer_json)), VAL, num_proc=n)
    for name in ("train.bin", "val.bin", "meta.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_copies_stay_together_and_more_documents_move_none(tmp_path, tokenizer_json):
    (tmp_path / "a.txt").write_text("<|endoftext|>\n".join(TEXTS[:100]))
    (tmp_path / "b.txt").write_text("<|endoftext|>\n".join(TEXTS))
    before, after = ([str(tmp_path / name) for name in names] for names in (["a.txt"], ["b.txt", "a.txt"]))
    for name, paths in (("before", before), ("after", after)):
        write_documents(tmp_path / name, Files(paths), load_tokenizer(str(tokenizer_json)), VAL, num_proc=1)
    val = {name: stories(tmp_path / name, "val") for name in ("before", "after")}
    assert set(val["before"]) == set(val["after"]) & set(TEXTS[:100])
    assert not set(val["after"]) & set(stories(tmp_path / "after", "train"))


def test_the_limit_counts_documents(tmp_path, source, tokenizer_json):
    for limit in (57, 1000):
        write_documents(tmp_path / "set", source, load_tokenizer(str(tokenizer_json)), VAL, limit, num_proc=1)
        found = stories(tmp_path / "set", "train") + stories(tmp_path / "set", "val")
        assert sorted(found) == sorted(TEXTS[:limit])


def test_corrupt_and_empty_documents_are_skipped_and_counted_in_one_line(tmp_path, tokenizer_json, capsys):
    good = [json.dumps({"text": text}).encode() for text in TEXTS[:50]]
    bad = [b"{", b'{"text": null}', b'{"text": "\xff"}', rb'{"text": "\udfff"}', b"[" * 100_000]
    empty = [b"", b'{"text": ""}', rb'{"text": " \n"}']
    (tmp_path / "mixed.jsonl").write_bytes(b"\n".join([*good[:20], *bad, *good[20:], *empty]) + b"\n")
    source = Files([str(tmp_path / "mixed.jsonl")])
    write_documents(tmp_path / "set", source, load_tokenizer(str(tokenizer_json)), VAL, num_proc=1)
    assert sorted(stories(tmp_path / "set", "train") + stories(tmp_path / "set", "val")) == sorted(TEXTS[:50])
    assert capsys.readouterr().out.endswith("skipped of these: 5 corrupt and 3 empty\n")


def test_the_name_of_end_of_text_in_a_document_ends_nothing(tmp_path, tokenizer_json):
    path = tmp_path / "odd.jsonl"
    odd = [f"{text}<|endoftext|>{text}" for text in TEXTS[:40]]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in odd))
    write_documents(
        tmp_path / "set", Files([str(path)]), load_tokenizer(str(tokenizer_json)), VAL, num_proc=1
    )
    assert sorted(stories(tmp_path / "set", "train") + stories(tmp_path / "set", "val")) == sorted(odd)


def test_a_large_vocabulary_is_written_as_uint32(tmp_path, source, tokenizer_json):
    described = json.loads(tokenizer_json.read_text())
    described["added_tokens"].append(described["added_tokens"][0] | {"id": 70000, "content": "<|far|>"})
    described["model"]["vocab"]["<|far|>"] = 70000
    (tmp_path / "large.json").write_text(json.dumps(described))
    tokenizer = load_tokenizer(str(tmp_path / "large.json"))
    assert tokenizer.vocab_size == 70001
    write_documents(tmp_path / "set", source, tokenizer, VAL, num_proc=1)
    assert load_meta(str(tmp_path / "set")).dtype == "uint32"
    assert sorted(stories(tmp_path / "set", "train") + stories(tmp_path / "set", "val")) == sorted(TEXTS)


# Killed

# Ends as `kill -9` does, behind the `kill_at`-th file that got its name: a note of the progress, which each
# batch leaves here, or at the end meta.json and the files of the splits.
PROGRAM = """
    import os, signal, sys
    from pathlib import Path
    from data import documents, shards, sources
    from data.tokenizer import load_tokenizer
    folder, source, tokenizer, kill_at = sys.argv[1:]
    sources.BATCH, documents.SAVE_EVERY, shards.SHARD = 2000, 1, 1500
    named, rename = [], os.replace
    def replace(one, other):
        rename(one, other)
        named.append(other)
        if len(named) == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
    os.replace = replace
    if __name__ == "__main__":
        files = sources.Files([source])
        documents.write_documents(Path(folder), files, load_tokenizer(tokenizer), 0.25, num_proc=2)
        print(len(named))
"""


def run_program(tmp_path, folder, source, tokenizer_json, kill_at):
    """The program's end. It returns when all who could write to its output are gone, its workers as well."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    words = [program, folder, source.paths[0], tokenizer_json, str(kill_at)]
    return run_python(*words, PYTHONPATH=ROOT)


@pytest.mark.slow
def test_after_a_kill_the_same_command_writes_what_it_would_have(tmp_path, source, tokenizer_json):
    whole = run_program(tmp_path, tmp_path / "whole", source, tokenizer_json, kill_at=0)
    assert whole.returncode == 0, whole.stderr
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    n_files = len(expected) - 1
    assert "train_00001.bin" in expected
    n_named = int(whole.stdout.splitlines()[-1])
    n_noted = n_named - n_files - 1  # what is named last is meta.json and the files
    for kill_at in (1, n_noted // 2, n_noted, n_noted + 1, n_named - 1):
        folder = tmp_path / str(kill_at)
        killed = run_program(tmp_path, folder, source, tokenizer_json, kill_at)
        assert killed.returncode == -9
        assert not (folder / "train.bin").exists() and not (folder / "train_00000.bin").exists()
        with pytest.raises(UserError):
            Batches(Dataset(str(folder)), "train", 1, 8, 1)
        again = run_program(tmp_path, folder, source, tokenizer_json, kill_at=0)
        assert again.returncode == 0, again.stderr
        assert "going on after" in again.stdout
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected


def test_another_command_does_not_go_on_with_what_a_killed_one_left(tmp_path, source, tokenizer_json):
    killed = run_program(tmp_path, tmp_path / "set", source, tokenizer_json, kill_at=2)
    assert killed.returncode == -9
    with pytest.raises(UserError, match=r"another command.*\.prepare\.json"):
        write_documents(tmp_path / "set", source, load_tokenizer(str(tokenizer_json)), 0.5, num_proc=1)
    Path(source.paths[0]).write_text('{"text": "the source has changed"}\n')
    again = run_program(tmp_path, tmp_path / "set", source, tokenizer_json, kill_at=0)
    assert again.returncode == 1 and "UserError" in again.stderr
    (tmp_path / "set" / ".prepare.json").write_text("{")
    with pytest.raises(UserError, match=r"\.prepare\.json: damaged"):
        write_documents(tmp_path / "set", source, load_tokenizer(str(tokenizer_json)), VAL, num_proc=1)


@pytest.fixture
def begun(tmp_path):
    """The .prepare.json of a command that was killed."""
    path = tmp_path / "set" / ".prepare.json"
    path.parent.mkdir()
    splits = {split: {"tokens": 3, "sha256": ["0"]} for split in ("train", "val")}
    Progress({"limit": 9}, [0, 100], documents=7, splits=splits, meta={"shards": {"val": []}}).save(path)
    return path


def test_any_damage_to_the_progress_is_one_line(begun):
    assert load_progress(begun, {"limit": 9}).documents == 7
    free = ("progress.meta.shards.val",)  # an empty list is what it is
    assert_named(begun, lambda: load_progress(begun, {"limit": 9}), free)


def test_progress_that_names_files_elsewhere_is_refused(begun):
    """Its files would be renamed there."""
    shards = {"train": [{"file": "../train.bin"}], "val": []}
    Progress({"limit": 9}, meta={"shards": shards}).save(begun)
    assert "a file of the data set is outside" in refusal(load_progress, begun, {"limit": 9})


# Memory


def test_few_batches_are_on_their_way_at_a_time(tokenizer_json):
    drawn = []

    def batches():
        for i in range(100):
            drawn.append(i)
            yield DocumentBatch([b"the text"], False, i)

    described = load_tokenizer(str(tokenizer_json)).to_json()
    for done, _ in enumerate(tokenize_in_parallel(batches(), 2, (described, VAL, "<u2"))):
        assert len(drawn) <= done + 1 + 2 * 2
    assert done == 99


# What a process held at its peak, in KiB, after the first tenth of a source and after all of it. (What the
# resource module calls the peak includes that of the process which started this one.)
PEAKS = r"""
    import re, sys
    from pathlib import Path
    from data.documents import write_documents
    from data.sources import Files
    from data.tokenizer import load_tokenizer
    if __name__ == "__main__":
        folder, source, tokenizer = sys.argv[1:]
        for limit in (200, None):
            write_documents(Path(folder), Files([source]), load_tokenizer(tokenizer), 0.25, limit, num_proc=1)
            print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_source(tmp_path, tokenizer_json):
    with open(tmp_path / "long.jsonl", "w") as file:
        for i in range(2000):  # 40 MB; most are blank, which takes no time to tokenize
            file.write(json.dumps({"text": f"{i}" + " the" * 5000 if i % 8 == 0 else " " * 20000}) + "\n")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PEAKS))
    words = [program, tmp_path / "set", tmp_path / "long.jsonl", tokenizer_json]
    done = run_python(*words, PYTHONPATH=ROOT)
    assert done.returncode == 0, done.stderr
    few, all_ = (int(line) for line in done.stdout.splitlines() if line.isdecimal())
    assert all_ - few < 16 * 1024  # of the 40 MB, 3 batches of one are on their way at a time


# Bad input


def test_a_split_without_documents_is_refused_and_leaves_nothing(tmp_path, tokenizer_json):
    (tmp_path / "book.txt").write_text("a book, which is one document")
    (tmp_path / "two.txt").write_text("one\n<|endoftext|>\ntwo")
    for name, advice in (("book.txt", "give at least two: in .txt"), ("two.txt", "--val_fraction")):
        source = Files([str(tmp_path / name)])
        for fraction, missing in ((1e-9, "val"), (1 - 1e-9, "train")):
            says = f"{name}: . documents.* leave none for {missing}: .*{advice}"
            with pytest.raises(UserError, match=says):
                write_documents(
                    tmp_path / "set", source, load_tokenizer(str(tokenizer_json)), fraction, num_proc=1
                )
            assert list((tmp_path / "set").iterdir()) == []


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path, source, tokenizer_json):
    described = json.loads(tokenizer_json.read_text())
    (tmp_path / "endless.json").write_text(json.dumps(described | {"added_tokens": []}))
    with pytest.raises(UserError, match="end-of-text"):
        write_documents(tmp_path / "set", source, load_tokenizer(str(tmp_path / "endless.json")), VAL)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, source, tokenizer_json):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="file"):
        write_documents(tmp_path / "file" / "set", source, load_tokenizer(str(tokenizer_json)), VAL)


@pytest.mark.parametrize(
    "argument", ["--limit=0", "--num_proc=0", "--val_fraction=0", "--val_fraction=1", "--tokenizer=none.json"]
)
def test_a_value_that_cannot_be_is_named(tmp_path, source, argument):
    with pytest.raises(UserError, match=argument.partition("=")[2]):
        main([f"--source={source.paths[0]}", f"--to={tmp_path / 'set'}", argument])


@pytest.mark.parametrize("folder", ["", "openwebtext", "tinystories", "fineweb_edu"])
def test_each_command_prepares_ones_own_files(tmp_path, source, tokenizer_json, folder):
    script = ROOT / "data" / folder / "prepare.py"
    words = [script, f"--source={source.paths[0]}", "--to=mine", f"--tokenizer={tokenizer_json}"]
    words += ["--num_proc=1", "--val_fraction=0.25", "--limit=50"]
    done = run_python(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "million a second" in done.stdout and "50 documents" in done.stdout
    assert sorted(stories(tmp_path / "mine", "train") + stories(tmp_path / "mine", "val")) == sorted(
        TEXTS[:50]
    )
    missing = run_python(*words, "--source=none.jsonl", cwd=tmp_path)
    assert (missing.returncode, missing.stderr) == (2, "error: --source=none.jsonl: no such file\n")


@pytest.mark.skipif("TIKTOKEN_CACHE_DIR" not in os.environ, reason="needs GPT-2's vocabulary")
def test_gpt2s_tokens_are_tiktokens(tmp_path, source):
    import tiktoken

    write_documents(tmp_path / "set", source, load_tokenizer("gpt2"), VAL, num_proc=2)
    encoding = tiktoken.get_encoding("gpt2")
    for split in ("train", "val"):
        ids = tokens(tmp_path / "set", split)
        texts = encoding.decode(ids).split("<|endoftext|>")
        assert texts.pop() == "" and set(texts) < set(TEXTS)
        assert ids.tolist() == [i for text in texts for i in [*encoding.encode_ordinary(text), 50256]]
