"""The writer: what it leaves on disk, and that it never leaves half of it."""

import hashlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from config.command_line import UserError
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
from tests.helpers import run_python


class Interrupted:
    """Token ids that raise when they are read."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_bins_are_little_endian_uint16_with_a_description(tmp_path):
    folder = tmp_path / "new" / "set"
    write_dataset(folder, [0, 1, 2, 1], [2, 0], CharTokenizer("abc"), "a test")
    assert files(folder) == ["meta.json", "train.bin", "val.bin"]
    assert (folder / "train.bin").read_bytes() == b"\x00\x00\x01\x00\x02\x00\x01\x00"
    assert (folder / "val.bin").read_bytes() == b"\x02\x00\x00\x00"
    assert json.loads((folder / "meta.json").read_text()) == {
        "format": 1,
        "vocab_size": 3,
        "tokenizer": {"type": "char", "symbols": "abc"},
        "dtype": "uint16",
        "counts": {"train": 4, "val": 2},
        "sha256": {
            "train": hashlib.sha256((folder / "train.bin").read_bytes()).hexdigest(),
            "val": hashlib.sha256((folder / "val.bin").read_bytes()).hexdigest(),
        },
        "source": "a test",
    }


@pytest.mark.parametrize(
    "size, dtype, width", [(65535, "uint16", 2), (65536, "uint32", 4), (70000, "uint32", 4)]
)
def test_a_large_vocabulary_needs_uint32(tmp_path, size, dtype, width):
    symbols = "".join(chr(0x10000 + i) for i in range(size))
    write_dataset(tmp_path, [size - 1], [0], CharTokenizer(symbols), "a test")
    assert json.loads((tmp_path / "meta.json").read_text())["dtype"] == dtype
    assert (tmp_path / "train.bin").read_bytes() == (size - 1).to_bytes(width, "little")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("a bug")])
def test_an_interruption_between_the_splits_leaves_nothing(tmp_path, error):
    with pytest.raises(type(error)):
        write_dataset(tmp_path, [0, 1], Interrupted(error), CharTokenizer("ab"), "a test")
    assert files(tmp_path) == []


def test_an_interruption_leaves_the_previous_data_set_as_it_was(tmp_path):
    write_dataset(tmp_path, [0, 1], [1], CharTokenizer("ab"), "the first")
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        write_dataset(
            tmp_path, [1, 1, 1], Interrupted(KeyboardInterrupt()), CharTokenizer("ab"), "the second"
        )
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_train_bin_is_the_last_to_appear(tmp_path, monkeypatch):
    """The loader takes train.bin for the sign that the rest is there."""
    seen, rename = [], os.replace

    def watched(source, target):
        rename(source, target)
        seen.append(Path(target).name)

    monkeypatch.setattr(os, "replace", watched)
    write_dataset(tmp_path, [0], [1], CharTokenizer("ab"), "a test")
    assert seen == ["meta.json", "val.bin", "train.bin"]


def test_a_killed_writer_leaves_no_bin(tmp_path):
    program = f"""
import os, signal
from pathlib import Path
from data.tokenizer import CharTokenizer
from data.writer import write_dataset
class Killer:
    def __array__(self, dtype=None, copy=None):
        os.kill(os.getpid(), signal.SIGKILL)
write_dataset(Path({str(tmp_path)!r}), [0, 1], Killer(), CharTokenizer("ab"), "a test")
"""
    done = run_python("-c", program)
    assert done.returncode == -signal.SIGKILL
    assert not {"train.bin", "val.bin", "meta.json"} & set(files(tmp_path))


@pytest.mark.parametrize("train, val", [([], [0]), ([0], []), ([0, 2], [0]), ([0], [-1])])
def test_ids_that_cannot_be_stored_are_refused(tmp_path, train, val):
    with pytest.raises(UserError, match=r"(train|val)\.bin"):
        write_dataset(tmp_path, np.array(train, int), np.array(val, int), CharTokenizer("ab"), "a test")
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="file"):
        write_dataset(tmp_path / "file" / "set", [0], [0], CharTokenizer("a"), "a test")
