"""Shards: what is written is read as one sequence, whatever the size of a file."""

import hashlib
import json

import numpy as np
import pytest

from config.command_line import UserError
from data import shards
from data.batches import Batches
from data.meta import Meta, load_meta
from data.registry import prepare_if_missing
from data.shards import ShardWriter, publish
from data.token_files import Dataset, TokenFiles

IDS = np.arange(1000, 1103, dtype="<u2")


@pytest.fixture(params=[1, 7, 50, 103, 104])
def dataset(request, tmp_path, monkeypatch):
    """103 train tokens in files of at most so many, and as many val tokens."""
    monkeypatch.setattr(shards, "SHARD", request.param)
    meta = {"format": 1, "vocab_size": 2000, "tokenizer": None, "dtype": "uint16"}
    meta |= {"counts": {"train": 103, "val": 103}, "shards": {}}
    for split in ("train", "val"):
        writer = ShardWriter(tmp_path, split, IDS.dtype)
        for piece in np.array_split(IDS, 6):
            writer.append(piece.tobytes())
        meta["shards"][split] = writer.finish()
    publish(tmp_path, meta)
    return tmp_path


def whole(folder, split):
    files = json.loads((folder / "meta.json").read_text())["shards"][split]
    return np.concatenate([np.fromfile(folder / shard["file"], "<u2") for shard in files])


def test_files_in_order_hold_all_tokens_and_meta_describes_each(dataset):
    files = json.loads((dataset / "meta.json").read_text())["shards"]["train"]
    assert {path.name for path in dataset.glob("train*")} == {shard["file"] for shard in files}
    assert (len(files) == 1) == (files[0]["file"] == "train.bin")
    for shard in files:
        content = (dataset / shard["file"]).read_bytes()
        assert len(content) == 2 * shard["tokens"] <= 2 * shards.SHARD
        assert hashlib.sha256(content).hexdigest() == shard["sha256"]
    np.testing.assert_array_equal(whole(dataset, "train"), IDS)
    assert not list(dataset.glob(".*.tmp"))


def test_what_lies_at_a_temporary_name_is_not_written_to(tmp_path):
    (outside := tmp_path / "outside").write_bytes(b"kept")
    (tmp_path / "data").mkdir()
    shards.temporary_path(tmp_path / "data", "train", 0).symlink_to(outside)
    writer = ShardWriter(tmp_path / "data", "train", IDS.dtype)
    writer.append(IDS.tobytes())
    writer.finish()
    assert outside.read_bytes() == b"kept"


@pytest.mark.parametrize("sampling", ["random", "epoch"])
def test_batches_are_those_of_one_file(dataset, tmp_path_factory, sampling):
    single = tmp_path_factory.mktemp("single")
    for split in ("train", "val"):
        IDS.tofile(single / f"{split}.bin")
    theirs, ours = (Batches(Dataset(str(folder)), "train", 5, 8, 1, sampling) for folder in (single, dataset))
    for i in range(20):
        np.testing.assert_array_equal(ours(i), theirs(i))
    passes = [np.concatenate([y.ravel() for _, y in some.every_window()]) for some in (ours, theirs)]
    np.testing.assert_array_equal(*passes)
    prepare_if_missing(str(dataset))  # finds nothing to do


@pytest.mark.parametrize("ends", [[30], [1, 30], [10, 11, 30], [3, 4, 29, 30], [5, 10, 15, 20, 25, 30]])
def test_any_window_is_that_of_one_file(tmp_path, ends):
    files, begin = [], 0
    for end in ends:
        np.arange(begin, end, dtype="<u2").tofile(tmp_path / f"{end}.bin")
        files.append((f"{end}.bin", end - begin))
        begin = end
    tokens = TokenFiles(tmp_path, Meta(30, None, "uint16", shards={"train": tuple(files)}), "train")
    assert len(tokens) == 30
    for width in range(1, 31):
        starts = np.arange(31 - width)
        np.testing.assert_array_equal(tokens.read(starts.tolist(), width), starts[:, None] + np.arange(width))


@pytest.mark.parametrize("size", [1, 7, 50, 104])
def test_a_writer_made_of_a_state_goes_on_from_it(tmp_path, monkeypatch, size):
    monkeypatch.setattr(shards, "SHARD", size)
    writer = ShardWriter(tmp_path, "train", IDS.dtype)
    writer.append(IDS[:50].tobytes())
    state = json.loads(json.dumps(writer.sync()))
    writer.append(IDS[50:77].tobytes())  # lost: after the state that was kept
    writer.sync()
    again = ShardWriter(tmp_path, "train", IDS.dtype, **state)
    again.append(IDS[50:].tobytes())
    files = again.finish()
    written = b"".join(
        (tmp_path / f".train_{i:05}.bin.tmp").read_bytes()[: 2 * shard["tokens"]]
        for i, shard in enumerate(files)
    )
    assert written == IDS.tobytes()
    assert [shard["sha256"] for shard in files] == [
        hashlib.sha256(IDS[i : i + size].tobytes()).hexdigest() for i in range(0, 103, size)
    ]


def test_files_that_are_shorter_than_their_state_are_refused(tmp_path):
    writer = ShardWriter(tmp_path, "train", IDS.dtype)
    writer.append(IDS.tobytes())
    state = writer.sync()
    path = tmp_path / ".train_00000.bin.tmp"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"\.train_00000\.bin\.tmp.*prepare\.json"):
        ShardWriter(tmp_path, "train", IDS.dtype, **state)


def test_a_smaller_data_set_leaves_nothing_of_the_larger_one(dataset, monkeypatch):
    (dataset / "train_of_mine.bin").write_bytes(b"mine")
    monkeypatch.setattr(shards, "SHARD", 1000)
    meta = json.loads((dataset / "meta.json").read_text())
    for split in ("train", "val"):
        writer = ShardWriter(dataset, split, IDS.dtype)
        writer.append(IDS[:3].tobytes())
        meta["shards"][split], meta["counts"][split] = writer.finish(), 3
    publish(dataset, meta)
    assert {path.name for path in dataset.iterdir()} == {
        *("meta.json", "train.bin", "val.bin", "train_of_mine.bin")
    }


def test_a_missing_and_a_short_file_are_named(dataset):
    last = json.loads((dataset / "meta.json").read_text())["shards"]["val"][-1]["file"]
    content = (dataset / last).read_bytes()
    (dataset / last).write_bytes(content + b"\0\0")
    with pytest.raises(UserError, match=last):
        Batches(Dataset(str(dataset)), "val", 1, 8, 1)
    (dataset / last).unlink()
    with pytest.raises(UserError, match=last):
        Batches(Dataset(str(dataset)), "val", 1, 8, 1)


@pytest.mark.parametrize(
    "listed", [3, {"train": 3}, {"train": [{}]}, {"train": [{"file": "x", "tokens": "y"}]}]
)
def test_shards_that_cannot_be_are_refused(dataset, listed):
    meta = json.loads((dataset / "meta.json").read_text())
    (dataset / "meta.json").write_text(json.dumps(meta | {"shards": listed}))
    with pytest.raises(UserError, match=r"meta\.json.*prepare\.py"):
        load_meta(str(dataset))
