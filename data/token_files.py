"""Read the token files of one split as one sequence, and check what is read.

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
from typing import IO

import numpy as np
from jaxtyping import UInt
from numpy.lib.stride_tricks import sliding_window_view

from config.command_line import UserError
from config.files import cache_folder, open_file
from data.meta import Meta

# A split up to this size is checked for ids outside the vocabulary when it is opened, which takes at most
# 30 ms once it is in memory. A larger one would delay the start. What is read is checked in either case.
CHECK_AT_OPEN = 256 * 2**20  # bytes
READ_ONCE = 2**26  # bytes: the sha256 of a file up to this size takes at most 70 ms


class TokenFiles:
    """The tokens of a split, in one file or several.

    Opening raises UserError when a file is missing, empty, cut short, not as meta.json says (its sha256
    included), or has ids outside the vocabulary.
    """

    def __init__(self, folder: Path, meta: Meta, split: str):
        files, dtype = meta.files(split), np.dtype(meta.dtype).newbyteorder("<")
        self.vocab_size = meta.vocab_size
        self.paths = [folder / name for name, _ in files]
        self.maps = [map_file(folder / name, dtype, count, meta.sha256.get(name)) for name, count in files]
        self.arrays = [np.frombuffer(memory, dtype) for memory in self.maps]
        self.begins = list(itertools.accumulate(map(len, self.arrays), initial=0))  # the last is the end
        if sum(map(len, self.maps)) <= CHECK_AT_OPEN:
            for array in self.arrays:
                self._check_ids(array)

    def __len__(self) -> int:
        return self.begins[-1]

    def read(self, starts: Iterable[int], width: int) -> UInt[np.ndarray, "n width"]:
        """Copy the `width` tokens from each start on, none of which reaches over the end.

        Raises UserError when an id is outside the vocabulary, or a file has become shorter.
        """
        # To read memory beyond the end of its file would kill the process (SIGBUS).
        for path, memory in zip(self.paths, self.maps, strict=True):
            if memory.size() < len(memory):
                raise UserError(f"{path}: the file was cut short while it was read: run prepare.py again")
        if len(self.arrays) == 1:  # one gather, which takes a fifth of the loop's time
            windows = sliding_window_view(self.arrays[0], width)[np.asarray(starts)]
        else:
            windows = np.stack([self._slice(start, start + width) for start in starts])
        self._check_ids(windows)  # the copy, since the file may change at any time
        return windows

    def _slice(self, start: int, stop: int) -> UInt[np.ndarray, " n"]:
        i = bisect_right(self.begins, start) - 1
        piece = self.arrays[i][start - self.begins[i] : stop - self.begins[i]]
        if len(piece) == stop - start:
            return piece
        return np.concatenate([piece, self._slice(start + len(piece), stop)])

    def _check_ids(self, tokens: np.ndarray) -> None:
        if (largest := tokens.max()) >= self.vocab_size:
            raise UserError(
                f"{self.paths[0]}: token id {largest} does not fit vocab_size {self.vocab_size}: "
                "the file is damaged or of another data set; run prepare.py again"
            )


def map_file(path: Path, dtype: np.dtype, count: int | None, sha256: str | None) -> mmap.mmap:
    """Map the token ids at `path` into memory.

    The map keeps the file open: its `size()` is the file's, at any time. Raises UserError when the file is
    missing, empty, not `count` tokens long, or not of that sha256.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise UserError(f"{path}: the file is empty: run prepare.py again")
            if size % dtype.itemsize:
                raise UserError(
                    f"{path}: {size} bytes are not a whole number of {dtype.name} tokens: "
                    "run prepare.py again"
                )
            if count is not None and size != count * dtype.itemsize:
                raise UserError(
                    f"{path}: {size // dtype.itemsize} tokens where meta.json says {count}: "
                    "the file is cut short or of another data set; run prepare.py again"
                )
            if sha256 is not None:
                check_sha256(path, file, sha256)
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: run the data set's prepare.py") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): check it") from None


def check_sha256(path: Path, file: IO[bytes], expected: str) -> None:
    """Raise UserError when the sha256 of a file, opened from `path`, is not the expected one.

    A small file is read each time. A large one is read once on this machine, and then again when its size,
    time or inode has changed. Raises OSError.
    """
    status = os.fstat(file.fileno())
    same = (platform.node(), str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino, expected)
    mark = cache_folder() / "checked" / hashlib.sha256(repr(same).encode()).hexdigest()
    if status.st_size > READ_ONCE:
        if os.path.exists(mark):
            return
        print(f"note: {path}: is read once to check it, at about 1 s for a GB", file=sys.stderr)
    sha256 = hashlib.sha256()
    while piece := file.read(2**20):
        sha256.update(piece)
    if sha256.hexdigest() != expected:
        raise UserError(
            f"{path}: its sha256 is not the one in meta.json: the file is damaged or of another data set; "
            "run prepare.py again, or copy it again"
        )
    if status.st_size > READ_ONCE:
        with suppress(OSError):  # where no mark can be left, the next start reads the file again
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch()
