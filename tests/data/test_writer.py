"""The writer: what it leaves on disk, what it goes on from, and that it never leaves half of it."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from config.command_line import UserError
from data import documents
from data.batches import Batches
from data.dataset import Dataset, Meta, Shard, TokenFiles, prepare_if_missing
from data.documents import append, publish
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from tests.helpers import contents

IDS = np.arange(103, dtype="<u2")
SYMBOLS = CharTokenizer("".join(map(chr, range(200, 303))))


def write(folder, train, val, symbols="ab"):
    write_dataset(folder, train, val, CharTokenizer(symbols), "a test")


def test_bins_are_little_endian_uint16_with_a_description(tmp_path):
    folder = tmp_path / "new" / "set"
    write(folder, [0, 1, 2, 1], [2, 0], "abc")
    assert contents(folder).keys() == {"meta.json", "train.bin", "val.bin"}
    bins = {"train": b"\x00\x00\x01\x00\x02\x00\x01\x00", "val": b"\x02\x00\x00\x00"}
    assert {split: (folder / f"{split}.bin").read_bytes() for split in bins} == bins
    assert json.loads((folder / "meta.json").read_text()) == {
        "format": 1,
        "vocab_size": 3,
        "tokenizer": {"type": "char", "symbols": "abc"},
        "dtype": "uint16",
        "counts": {"train": 4, "val": 2},
        "sha256": {split: hashlib.sha256(content).hexdigest() for split, content in bins.items()},
        "source": "a test",
    }


@pytest.mark.parametrize("size, width", [(65535, 2), (65536, 4), (70000, 4)])
def test_a_large_vocabulary_needs_uint32(tmp_path, size, width):
    write(tmp_path, [size - 1], [0], "".join(chr(0x10000 + i) for i in range(size)))
    assert json.loads((tmp_path / "meta.json").read_text())["dtype"] == f"uint{8 * width}"
    assert (tmp_path / "train.bin").read_bytes() == (size - 1).to_bytes(width, "little")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("there", [True, False])
def test_an_interruption_leaves_nothing_or_the_previous_data_set(tmp_path, monkeypatch, error, there):
    if there:
        write(tmp_path, [0, 1], [1])
    before = contents(tmp_path)

    def fail(number):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write(tmp_path, [1, 1, 1], [0])
    assert contents(tmp_path) == before


def test_train_bin_is_the_last_to_appear(tmp_path, monkeypatch):
    """The loader takes train.bin for the sign that the rest is there."""
    seen, rename = [], os.replace

    def watched(source, target):
        rename(source, target)
        seen.append(Path(target).name)

    monkeypatch.setattr(os, "replace", watched)
    write(tmp_path, [0], [1])
    assert seen == ["meta.json", "val.bin", "train.bin"]


# --- a data set that streams ------------------------------------------------------------------------------


def write_shards(folder, ids=IDS):
    """Write `ids` in 20 parts as both splits."""
    sizes = {"train": [], "val": []}
    for split in sizes:
        for piece in np.array_split(ids, 20):
            append(folder, split, sizes[split], piece)
    assert publish(folder, sizes, SYMBOLS, "a test") == {"train": len(ids), "val": len(ids)}


@pytest.fixture(params=[1, 7, 50, 103, 104])
def dataset(request, tmp_path, monkeypatch):
    """103 tokens of both splits in files that are full with so many."""
    monkeypatch.setattr(documents, "SHARD", request.param)
    write_shards(tmp_path)
    return tmp_path


def test_files_in_order_hold_all_tokens_and_meta_describes_each(dataset):
    files = json.loads((dataset / "meta.json").read_text())["shards"]["train"]
    assert {path.name for path in dataset.glob("train*")} == {shard["file"] for shard in files}
    assert (len(files) == 1) == (files[0]["file"] == "train.bin") == (documents.SHARD > 102)
    for shard in files:
        content = (dataset / shard["file"]).read_bytes()
        assert len(content) == 2 * shard["tokens"] < 2 * (documents.SHARD + 6)
        assert hashlib.sha256(content).hexdigest() == shard["sha256"]
    assert b"".join((dataset / shard["file"]).read_bytes() for shard in files) == IDS.tobytes()
    assert not list(dataset.glob(".*.tmp"))


def test_what_lies_at_a_temporary_name_is_not_written_to(tmp_path):
    (outside := tmp_path / "outside").write_bytes(b"kept")
    documents.temporary_path(tmp_path, "train", 0).symlink_to(outside)
    append(tmp_path, "train", [], IDS)
    assert outside.read_bytes() == b"kept"


def test_batches_are_those_of_one_file(dataset, tmp_path_factory):
    single = tmp_path_factory.mktemp("single")
    write_dataset(single, IDS, IDS, SYMBOLS, "a test")
    theirs, ours = (Batches(Dataset(str(folder)), "train", 5, 8, 1, "epoch") for folder in (single, dataset))
    for i in range(20):
        np.testing.assert_array_equal(ours(i), theirs(i))
    prepare_if_missing(str(dataset))  # finds nothing to do


@pytest.mark.parametrize("ends", [[30], [1, 30], [10, 11, 30], [3, 4, 29, 30], [5, 10, 15, 20, 25, 30]])
def test_any_window_is_that_of_one_file(tmp_path, ends):
    files, begin = [], 0
    for end in ends:
        np.arange(begin, end, dtype="<u2").tofile(tmp_path / f"{end}.bin")
        files.append(Shard(f"{end}.bin", end - begin))
        begin = end
    tokens = TokenFiles(tmp_path, Meta(30, None, "uint16", shards={"train": files}), "train")
    assert len(tokens) == 30
    for width in range(1, 31):
        starts = np.arange(31 - width)
        np.testing.assert_array_equal(tokens.read(starts.tolist(), width), starts[:, None] + np.arange(width))


@pytest.mark.parametrize("size", [1, 7, 50, 104])
def test_writing_goes_on_from_the_sizes_that_were_kept(tmp_path, monkeypatch, size):
    monkeypatch.setattr(documents, "SHARD", size)
    append(tmp_path, "train", sizes := [], IDS[:50])
    kept = list(sizes)
    append(tmp_path, "train", sizes, IDS[70:90])  # lost: after the sizes that were kept
    append(tmp_path, "train", kept, IDS[50:])
    append(tmp_path, "train", kept, IDS[:0])
    append(tmp_path, "val", sizes := [], IDS)
    publish(tmp_path, {"train": kept, "val": sizes}, SYMBOLS, "a test")
    files = json.loads((tmp_path / "meta.json").read_text())["shards"]["train"]
    assert b"".join((tmp_path / shard["file"]).read_bytes() for shard in files) == IDS.tobytes()


def test_a_file_that_is_shorter_than_it_was_is_refused(tmp_path):
    append(tmp_path, "train", sizes := [], IDS)
    path = documents.temporary_path(tmp_path, "train", 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"\.train_00000\.bin\.tmp.*prepare\.json"):
        append(tmp_path, "train", sizes, IDS)


def test_a_smaller_data_set_leaves_nothing_of_the_larger_one(dataset, monkeypatch):
    (dataset / "train_of_mine.bin").write_bytes(b"mine")
    append(dataset, "val", [], IDS)  # of a command that was given up
    monkeypatch.setattr(documents, "SHARD", 1000)
    write_shards(dataset, IDS[:3])
    assert contents(dataset).keys() == {"meta.json", "train.bin", "val.bin", "train_of_mine.bin"}
