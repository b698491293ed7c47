"""The writer: what it leaves on disk, what it goes on from, and that it never leaves half of it."""

import hashlib
import json
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from common.errors import UserError
from data.dataset import load_meta
from data.documents import Progress, append, publish, temporary_path
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


def test_the_hash_of_a_split_is_also_of_what_is_learned(tmp_path):
    for folder, learned in (("one", [True, False]), ("other", [False, True])):
        learned = np.array(learned), np.array([True])
        write_dataset(tmp_path / folder, [0, 1], [1], CharTokenizer("ab"), "a test", learned)
    one, other = (load_meta(str(tmp_path / folder)).sha256 for folder in ("one", "other"))
    assert one["train"] != other["train"] and one["val"] == other["val"]


@pytest.mark.parametrize("size, width", [(65535, 2), (65536, 4)])
def test_a_large_vocabulary_needs_uint32(tmp_path, size, width):
    write(tmp_path, [size - 1], [0], "".join(chr(0x10000 + i) for i in range(size)))
    assert json.loads((tmp_path / "meta.json").read_text())["dtype"] == f"uint{8 * width}"
    assert (tmp_path / "train.bin").read_bytes() == (size - 1).to_bytes(width, "little")


@pytest.mark.parametrize(
    "error, there", [(KeyboardInterrupt(), True), (OSError(28, "No space left on device"), False)]
)
def test_an_interruption_leaves_nothing_or_the_previous_data_set(tmp_path, monkeypatch, error, there):
    if there:
        write(tmp_path, [0, 1], [1])
    before = contents(tmp_path)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=error))
    with pytest.raises(type(error)):
        write(tmp_path, [1, 1, 1], [0])
    assert contents(tmp_path) == before


def test_train_bin_is_the_last_to_appear(tmp_path, monkeypatch):
    """The loader takes train.bin for the sign that the rest is there."""
    monkeypatch.setattr(os, "replace", rename := Mock(wraps=os.replace))
    write(tmp_path, [0], [1])
    appeared = [Path(call.args[1]).name for call in rename.call_args_list]
    assert appeared == ["meta.json", "val.bin", "train.bin"]


def write_in_parts(folder, ids=IDS):
    """Write `ids` in 20 parts as both splits."""
    progress = Progress([], {})
    sizes = progress.sizes
    for split in sizes:
        for piece in np.array_split(ids, 20):
            sizes[split] = append(temporary_path(folder, split), sizes[split], piece)
    assert publish(folder, progress, SYMBOLS, "a test") == {"train": len(ids), "val": len(ids)}


def test_a_data_set_written_in_parts_is_that_written_at_once(tmp_path):
    (tmp_path / "parts").mkdir()
    write_in_parts(tmp_path / "parts")
    write_dataset(tmp_path / "whole", IDS, IDS, SYMBOLS, "a test", bytes={})
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_what_lies_at_a_temporary_name_is_not_written_to(tmp_path):
    (outside := tmp_path / "outside").write_bytes(b"kept")
    temporary_path(tmp_path, "train").symlink_to(outside)
    append(temporary_path(tmp_path, "train"), 0, IDS)
    assert outside.read_bytes() == b"kept"


def test_a_file_that_is_shorter_than_it_was_is_refused(tmp_path):
    size = append(tmp_path / "file", 0, IDS)
    (tmp_path / "file").write_bytes(IDS.tobytes()[:-1])
    with pytest.raises(UserError, match=r"file.*prepare\.json"):
        append(tmp_path / "file", size, IDS)


def test_a_smaller_data_set_leaves_nothing_of_the_larger_one(tmp_path):
    write_in_parts(tmp_path)
    (tmp_path / "train_of_mine.bin").write_bytes(b"mine")
    append(temporary_path(tmp_path, "val"), 0, IDS)  # of a command that was given up
    write_in_parts(tmp_path, IDS[:3])
    assert contents(tmp_path).keys() == {"meta.json", "train.bin", "val.bin", "train_of_mine.bin"}
    assert (tmp_path / "val.bin").read_bytes() == IDS[:3].tobytes()
