"""The token files of one split, as one sequence: written from end to end, and read without copying them.

A file holds at most SHARD tokens, so that no tool chokes on it. One file is called `train.bin`, as nanoGPT's;
several are `train_00000.bin`, `train_00001.bin` and so on. While they are written they have temporary names.
"""

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from config.command_line import UserError

SHARD = 10**9  # tokens


class ShardWriter:
    """Writes the tokens of a split; `state()` says how far, and a writer made of it goes on from there.

    Raises UserError when the files of that state are gone. What they hold beyond it is written anew.
    """

    def __init__(self, folder: Path, split: str, dtype: np.dtype, tokens: int = 0, sha256: tuple = ()):
        self.folder, self.split, self.dtype = folder, split, dtype
        self.tokens = tokens  # of all files
        self.sha256 = list(sha256)  # of the full ones
        self.file, self.hash = None, hashlib.sha256()
        begun = tokens - len(self.sha256) * SHARD
        if begun:
            self._go_on(begun * dtype.itemsize)

    def state(self) -> dict:
        """How much is written, once it is on disk."""
        if self.file is not None:
            self.file.flush()
            os.fsync(self.file.fileno())
        return {"tokens": self.tokens, "sha256": self.sha256}

    def append(self, tokens: bytes) -> None:
        """Write tokens, which are of the writer's dtype."""
        rest = memoryview(tokens)
        while rest:
            if self.file is None:
                self.file, self.hash = open(self._path(), "wb"), hashlib.sha256()
            room = (len(self.sha256) + 1) * SHARD - self.tokens
            piece, rest = rest[: room * self.dtype.itemsize], rest[room * self.dtype.itemsize :]
            self.file.write(piece)
            self.hash.update(piece)
            self.tokens += len(piece) // self.dtype.itemsize
            if len(piece) == room * self.dtype.itemsize:
                self._close()

    def finish(self) -> list[dict]:
        """Close the last file; what meta.json says of each: the name it will have, tokens and sha256."""
        if self.file is not None:
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
        self.state()
        self.file.close()
        self.file = None
        self.sha256.append(self.hash.hexdigest())

    def _path(self) -> Path:
        return temporary(self.folder, self.split, len(self.sha256))

    def _go_on(self, size: int) -> None:
        path = self._path()
        if not path.exists() or path.stat().st_size < size:
            raise UserError(f"{path}: gone, or shorter than it was: delete .prepare.json there to begin anew")
        self.file = open(path, "r+b")
        self.file.truncate(size)
        while piece := self.file.read(2**20):
            self.hash.update(piece)


def publish(folder: Path, meta: dict) -> None:
    """Write meta.json and give all files the names that it says, in place of what was there before.

    Stopped at any point, it can be done again. The loader finds a data set once the first file of the
    training split is there, which therefore comes last.
    """
    beside = folder / ".meta.json.tmp"
    beside.write_text(json.dumps(meta, indent=1) + "\n")
    os.replace(beside, folder / "meta.json")
    for split in ("val", "train"):
        names = [shard["file"] for shard in meta["shards"][split]]
        for path in folder.glob(f"{split}*.bin"):
            if re.fullmatch(rf"{split}(_\d{{5}})?\.bin", path.name) and path.name not in names:
                path.unlink()
        for i, name in reversed(list(enumerate(names))):
            if temporary(folder, split, i).exists():
                os.replace(temporary(folder, split, i), folder / name)
    for path in folder.glob(".*_?????.bin.tmp"):  # of a larger data set, begun and given up
        path.unlink()


def temporary(folder: Path, split: str, number: int) -> Path:
    """The name of a file while it is written."""
    return folder / f".{split}_{number:05}.bin.tmp"


class Shards:
    """Arrays of tokens, one after the other, as one sequence."""

    def __init__(self, arrays: list[np.ndarray]):
        self.arrays = arrays
        self.ends = np.cumsum([len(array) for array in arrays])
        self.begins = self.ends - [len(array) for array in arrays]
        self.nbytes = sum(array.nbytes for array in arrays)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, where: slice) -> np.ndarray:
        """The tokens of a slice without a step; a view, unless it reaches over the end of a file."""
        start, stop, _ = where.indices(len(self))
        pieces = [
            array[max(start - begin, 0) : stop - begin]
            for array, begin, end in zip(self.arrays, self.begins, self.ends, strict=True)
            if start < end and begin < stop
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([self.arrays[0][:0], *pieces])

    def max(self) -> int:
        """The largest token."""
        return max(array.max() for array in self.arrays)

    def windows(self, width: int) -> "np.ndarray | Windows":
        """Row s is the `width` tokens from s on: indexed by an array of starts, rows are copied at once."""
        return sliding_window_view(self.arrays[0], width) if len(self.arrays) == 1 else Windows(self, width)


class Windows:
    """What `sliding_window_view` is of one array, for shards: `len(windows)` and `windows[starts]`."""

    def __init__(self, tokens: Shards, width: int):
        self.tokens, self.width = tokens, width
        self.views = [sliding_window_view(a, width) if len(a) >= width else a[:0] for a in tokens.arrays]

    def __len__(self) -> int:
        return len(self.tokens) - self.width + 1

    def __getitem__(self, starts: np.ndarray) -> np.ndarray:
        """The windows from these starts, 0 or more: (len(starts), width)."""
        rows = np.empty((len(starts), self.width), self.tokens.arrays[0].dtype)
        shard = np.searchsorted(self.tokens.ends, starts, side="right")
        inside = starts + self.width <= self.tokens.ends[shard]
        for i in np.unique(shard[inside]):
            here = inside & (shard == i)
            rows[here] = self.views[i][starts[here] - self.tokens.begins[i]]
        for row in np.flatnonzero(~inside):  # few: these reach over the end of a file
            rows[row] = self.tokens[starts[row] : starts[row] + self.width]
        return rows
