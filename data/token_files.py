"""A data set: its description, and the tokens of each split as one sequence, which are checked when read.

The files are mapped into memory and read on demand, so they may be larger than the memory.
"""

import hashlib
import itertools
import mmap
import os
import platform
import sys
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt
from numpy.lib.stride_tricks import sliding_window_view

from config.command_line import UserError
from config.files import cache_folder, open_file
from data.meta import Meta, load_meta
from data.registry import dataset_dir

READ_ONCE = 2**26  # bytes: the sha256 of a file up to this size takes at most 70 ms


class DataChanged(UserError):
    """A file of the data set has changed since it was opened."""


class Dataset:
    """A prepared data set, by its name or path. It opens each split once. Raises UserError as `load_meta`."""

    def __init__(self, name: str):
        self.folder, self.meta = dataset_dir(name), load_meta(name)
        self._splits: dict[str, TokenFiles] = {}

    def tokens(self, split: str) -> "TokenFiles":
        """Open a split, or return it as it was opened before. Raises UserError as `TokenFiles` does."""
        if split not in self._splits:
            self._splits[split] = TokenFiles(self.folder, self.meta, split)
        return self._splits[split]


class TokenFiles:
    """The tokens of a split, in one file or several.

    Raises UserError when a file is missing, empty, cut short, or not as meta.json says, sha256 included.
    """

    def __init__(self, folder: Path, meta: Meta, split: str):
        files, dtype = meta.files(split), np.dtype(meta.dtype).newbyteorder("<")
        self.vocab_size = meta.vocab_size
        self.paths = [folder / name for name, _ in files]
        self.maps = [map_file(folder / name, dtype, count, meta.sha256.get(name)) for name, count in files]
        self.arrays = [np.frombuffer(memory, dtype) for memory in self.maps]
        self.begins = list(itertools.accumulate(map(len, self.arrays), initial=0))  # the last is the end

    def __len__(self) -> int:
        return self.begins[-1]

    def read(self, starts: Iterable[int], width: int) -> UInt[np.ndarray, "n width"]:
        """Copy the `width` tokens from each start on, none of which reaches over the end.

        Raises DataChanged when an id is outside the vocabulary, or a file has become shorter.
        """
        # To read memory beyond the end of its file would kill the process (SIGBUS).
        for path, memory in zip(self.paths, self.maps, strict=True):
            if memory.size() < len(memory):
                raise DataChanged(f"{path}: the file was cut short while it was read: run prepare.py again")
        if len(self.arrays) == 1:  # one gather, which takes a fifth of the loop's time
            windows = sliding_window_view(self.arrays[0], width)[np.asarray(starts)]
        else:
            windows = np.stack([self._slice(start, start + width) for start in starts])
        if (largest := windows.max()) >= self.vocab_size:  # of the copy: the file may change at any time
            raise DataChanged(
                f"{self.paths[0]}: token id {largest} does not fit vocab_size {self.vocab_size}: "
                "the file is damaged or of another data set; run prepare.py again"
            )
        return windows

    def _slice(self, start: int, stop: int) -> UInt[np.ndarray, " n"]:
        i = bisect_right(self.begins, start) - 1
        piece = self.arrays[i][start - self.begins[i] : stop - self.begins[i]]
        if len(piece) == stop - start:
            return piece
        return np.concatenate([piece, self._slice(start + len(piece), stop)])


def map_file(path: Path, dtype: np.dtype, count: int | None, sha256: str | None) -> mmap.mmap:
    """Map the token ids at `path` into memory. The map's `size()` is the file's, at any time.

    Raises UserError when the file is missing, empty, not `count` tokens long, or not of that sha256.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            expected = size if count is None else count * dtype.itemsize
            if size == 0 or size % dtype.itemsize or size != expected:
                said = "" if count is None else f", where meta.json says {count} tokens"
                raise UserError(
                    f"{path}: {size} bytes of {dtype.name}{said}: the file is empty, cut short or of another "
                    "data set; run prepare.py again"
                )
            if sha256 is not None:
                check_sha256(path, file, sha256)
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: run the data set's prepare.py") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): check it") from None


def check_sha256(path: Path, file: Any, expected: str) -> None:
    """Raise UserError when the sha256 of a file, opened from `path`, is not the expected one.

    A large file is read once on this machine, and again when its size, time or inode has changed.
    """
    status = os.fstat(file.fileno())
    same = (platform.node(), str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino, expected)
    mark = cache_folder() / "checked" / hashlib.sha256(repr(same).encode()).hexdigest()
    large = status.st_size > READ_ONCE
    if large and os.path.exists(mark):
        return
    if large:
        print(f"note: {path}: is read once to check it, at about 1 s for a GB", file=sys.stderr)
    if hashlib.file_digest(file, "sha256").hexdigest() != expected:
        raise UserError(
            f"{path}: its sha256 is not the one in meta.json: the file is damaged or of another data set; "
            "run prepare.py again, or copy it again"
        )
    if large:
        with suppress(OSError):  # where no mark can be left, the next start reads the file again
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch()
