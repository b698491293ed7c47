"""Write the token files of one split from end to end, and go on after a kill.

A file holds at most SHARD tokens, because some tools fail on larger files. A single file is `train.bin`, as
nanoGPT's is; several are `train_00000.bin`, `train_00001.bin` and so on. They have temporary names while they
are written.
"""

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np

from config.command_line import UserError
from config.files import open_file, put_in_place, write_whole

SHARD = 10**9  # tokens


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
