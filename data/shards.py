"""The token files of one split as one sequence, written from end to end and read without a copy.

A file holds at most SHARD tokens, because some tools fail on larger files. A single file is `train.bin`, as
nanoGPT's is; several are `train_00000.bin`, `train_00001.bin` and so on. They have temporary names while they
are written.
"""

import hashlib
import json
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from config.command_line import UserError
from config.files import cache_folder, open_file, put_in_place, write_whole

SHARD = 10**9  # tokens
READ_ONCE = 2**26  # bytes: the sha256 of a file up to this size takes at most 70 ms


class ShardWriter:
    """Writes the tokens of a split, and can go on after a kill.

    `sync()` returns the `tokens` and `sha256` with which another writer goes on from there. That writer
    overwrites whatever the files hold beyond. Raises UserError when the files are gone or too short.
    """

    def __init__(self, folder: Path, split: str, dtype: np.dtype, tokens: int = 0, sha256: tuple = ()):
        self.folder, self.split, self.dtype = folder, split, dtype
        self.tokens = tokens  # in all files together
        self.sha256 = list(sha256)  # one for each full file
        self.file, self.hash = None, hashlib.sha256()
        begun = tokens - len(self.sha256) * SHARD
        if begun:
            self._reopen(begun * dtype.itemsize)

    def sync(self) -> dict:
        """Bring all that is written to the disk, and return how much it is: `tokens` and `sha256`."""
        if self.file is not None:
            self.file.flush()
            os.fsync(self.file.fileno())
        return {"tokens": self.tokens, "sha256": self.sha256}

    def append(self, tokens: bytes) -> None:
        """Write tokens, given as bytes of the writer's dtype."""
        rest = memoryview(tokens)
        while rest:
            if self.file is None:
                self._path().unlink(missing_ok=True)  # of a killed process, beyond its recorded progress
                self.file, self.hash = open_file(self._path(), "xb"), hashlib.sha256()
            room = (len(self.sha256) + 1) * SHARD - self.tokens
            piece, rest = rest[: room * self.dtype.itemsize], rest[room * self.dtype.itemsize :]
            self.file.write(piece)
            self.hash.update(piece)
            self.tokens += len(piece) // self.dtype.itemsize
            if len(piece) == room * self.dtype.itemsize:
                self._close()

    def finish(self) -> list[dict]:
        """Close the last file. Return each file's entry in meta.json: its later name, tokens and sha256."""
        self._close()
        several = len(self.sha256) > 1
        return [
            {
                "file": f"{self.split}_{i:05}.bin" if several else f"{self.split}.bin",
                "tokens": min(SHARD, self.tokens - i * SHARD),
                "sha256": digest,
            }
            for i, digest in enumerate(self.sha256)
        ]

    def _close(self) -> None:
        if self.file is None:
            return
        self.sync()
        self.file.close()
        self.file = None
        self.sha256.append(self.hash.hexdigest())

    def _path(self) -> Path:
        return temporary_path(self.folder, self.split, len(self.sha256))

    def _reopen(self, size: int) -> None:
        path = self._path()
        if not path.exists() or path.stat().st_size < size:
            raise UserError(f"{path}: gone, or shorter than it was: delete .prepare.json there to begin anew")
        self.file = open_file(path, "r+b")
        self.file.truncate(size)
        while piece := self.file.read(2**20):
            self.hash.update(piece)


def publish(folder: Path, meta: dict) -> None:
    """Write meta.json and give all files the names in it. This replaces the data set that was there before.

    If it is stopped at any point, it can be called again. The first file of the training split is renamed
    last, because the loader takes it as the sign that the data set is there.
    """
    advice = "make room, and give the same command to go on"
    write_whole(folder / "meta.json", json.dumps(meta, indent=1) + "\n", advice)
    for split in ("val", "train"):
        names = [shard["file"] for shard in meta["shards"][split]]
        for path in folder.glob(f"{split}*.bin"):
            if re.fullmatch(rf"{split}(_\d{{5}})?\.bin", path.name) and path.name not in names:
                path.unlink()
        for i, name in reversed(list(enumerate(names))):
            if temporary_path(folder, split, i).exists():
                put_in_place(temporary_path(folder, split, i), folder / name)
    for path in folder.glob(".*_?????.bin.tmp"):  # left by a larger data set that was begun and given up
        path.unlink()


def temporary_path(folder: Path, split: str, number: int) -> Path:
    """Return the path that a file has while it is written."""
    return folder / f".{split}_{number:05}.bin.tmp"


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


class Shards:
    """The arrays of tokens in several files, read as one sequence."""

    def __init__(self, arrays: list[np.ndarray]):
        self.arrays = arrays
        self.ends = np.cumsum([len(array) for array in arrays])
        self.begins = self.ends - [len(array) for array in arrays]
        self.nbytes = sum(array.nbytes for array in arrays)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: slice) -> np.ndarray:
        """Return the tokens of a slice without a step: a view, or a copy if they lie in two files or more."""
        start, stop, _ = index.indices(len(self))
        pieces = [
            array[max(start - begin, 0) : stop - begin]
            for array, begin, end in zip(self.arrays, self.begins, self.ends, strict=True)
            if start < end and begin < stop
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([self.arrays[0][:0], *pieces])

    def max(self) -> int:
        """Return the largest token id."""
        return max(array.max() for array in self.arrays)

    def windows(self, width: int) -> "np.ndarray | Windows":
        """Return a view whose row s is the `width` tokens from s on.

        Indexed by an array of n starts, it copies their rows at once: (n, width).
        """
        return sliding_window_view(self.arrays[0], width) if len(self.arrays) == 1 else Windows(self, width)


class Windows:
    """`sliding_window_view` over several files. It has `len(windows)` and `windows[starts]`."""

    def __init__(self, tokens: Shards, width: int):
        self.tokens, self.width = tokens, width
        self.views = [sliding_window_view(a, width) if len(a) >= width else a[:0] for a in tokens.arrays]

    def __len__(self) -> int:
        return len(self.tokens) - self.width + 1

    def __getitem__(self, starts: np.ndarray) -> np.ndarray:
        """Copy the windows that begin at these starts, which are not negative: (len(starts), width)."""
        rows = np.empty((len(starts), self.width), self.tokens.arrays[0].dtype)
        shard = np.searchsorted(self.tokens.ends, starts, side="right")
        inside = starts + self.width <= self.tokens.ends[shard]
        for i in np.unique(shard[inside]):
            here = inside & (shard == i)
            rows[here] = self.views[i][starts[here] - self.tokens.begins[i]]
        for row in np.flatnonzero(~inside):  # the few that reach over the end of a file
            rows[row] = self.tokens[starts[row] : starts[row] + self.width]
        return rows
