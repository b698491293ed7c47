"""Write a data set: token ids in `train.bin` and `val.bin`, as nanoGPT does, and a `meta.json`.

`write_dataset` is for a data set that fits in memory. One that streams calls `append` for each part of a
split, and `publish` at the end.
"""

import hashlib
import json
import os
import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from config.command_line import UserError
from config.files import open_file, put_in_place, write_whole, written
from data.meta import FORMAT, SPLITS
from data.tokenizer import Tokenizer

SHARD = 10**9  # tokens in a file after which another begins: some tools fail on larger files
ADVICE = "make room or check its permissions, and give the same command again"


def write_text(folder: Path, text: str, tokenizer: Tokenizer, source: str) -> str:
    """Write a text as a data set, the first 90% of it for training. Return words for a summary."""
    cut = int(0.9 * len(text))
    train, val = tokenizer.encode(text[:cut], special=False), tokenizer.encode(text[cut:], special=False)
    write_dataset(folder, train, val, tokenizer, source)
    return f"{len(train):,} train and {len(val):,} validation tokens"


def write_dataset(
    folder: Path, train_ids: ArrayLike, val_ids: ArrayLike, tokenizer: Tokenizer, source: str
) -> None:
    """Write two splits of one-dimensional token ids and `meta.json` into `folder`.

    `source` says in words where the text came from. Raises UserError when a split is empty, an id does not
    fit the tokenizer's vocabulary, or the folder cannot be written.
    """
    folder, splits = Path(folder), {}
    for split, given in zip(SPLITS, (train_ids, val_ids), strict=True):
        ids = np.asarray(given)
        if ids.size == 0:
            raise UserError(f"{folder}: no tokens for {split}.bin: the text is empty or too short to split")
        if ids.min() < 0 or ids.max() >= tokenizer.vocab_size:
            raise UserError(
                f"{folder / split}.bin: token ids {ids.min()} to {ids.max()} do not fit a vocabulary of "
                f"{tokenizer.vocab_size}"
            )
        splits[split] = ids.astype(token_dtype(tokenizer.vocab_size))
    # The file entered first is renamed last: the loader takes train.bin as the sign that all is there.
    with ExitStack() as stack:
        for split, tokens in splits.items():
            stack.enter_context(written(folder / f"{split}.bin", ADVICE)).write(tokens.data)
        write_meta(folder, tokenizer, source, **describe_splits(splits))


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the type that tokens are stored in: little-endian uint16, or uint32 above 65,535 tokens."""
    return np.dtype("<u2" if vocab_size <= 65535 else "<u4")


def describe_splits(splits: dict[str, np.ndarray]) -> dict:
    """Return the entries of `meta.json` about splits that have one file each."""
    return {
        "counts": {split: len(tokens) for split, tokens in splits.items()},
        "sha256": {split: hashlib.sha256(tokens.data).hexdigest() for split, tokens in splits.items()},
    }


def write_meta(folder: Path, tokenizer: Tokenizer, source: str, **about_files) -> None:
    meta = {
        "format": FORMAT,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.to_json(),
        "dtype": token_dtype(tokenizer.vocab_size).name,
        "source": source,
        **about_files,
    }
    write_whole(folder / "meta.json", json.dumps(meta, indent=1) + "\n", ADVICE)


def append(folder: Path, split: str, sizes: list[int], tokens: np.ndarray) -> None:
    """Append tokens to the last file of a split, or to a new one if that is full, and bring them to the disk.

    `sizes`, the bytes in each file, is updated; what a killed process wrote beyond them is lost. Raises
    UserError when the file is gone or too short.
    """
    if not len(tokens):
        return
    if not sizes or sizes[-1] >= SHARD * tokens.itemsize:
        sizes.append(0)
    path = temporary_path(folder, split, len(sizes) - 1)
    if sizes[-1] == 0:
        path.unlink(missing_ok=True)
    elif not path.exists() or path.stat().st_size < sizes[-1]:
        raise UserError(f"{path}: gone, or shorter than it was: delete .prepare.json there to begin anew")
    with open_file(path, "r+b" if sizes[-1] else "xb") as file:
        file.truncate(sizes[-1])
        file.seek(sizes[-1])
        file.write(tokens.data)
        file.flush()
        os.fsync(file.fileno())
    sizes[-1] += tokens.nbytes


def temporary_path(folder: Path, split: str, i: int) -> Path:
    """Return the path that a split's i-th file has while it is written."""
    return folder / f".{split}_{i:05}.bin.tmp"


def describe_shards(folder: Path, split: str, sizes: list[int], dtype: np.dtype) -> list[dict]:
    """Return what meta.json says of a split's files: their later names, numbers of tokens and sha256."""
    shards = []
    for i in range(len(sizes)):
        with open_file(temporary_path(folder, split, i)) as file:
            tokens = np.memmap(file, dtype, mode="r")
        name = f"{split}_{i:05}.bin" if len(sizes) > 1 else f"{split}.bin"
        sha256 = hashlib.sha256(tokens.data).hexdigest()
        shards.append({"file": name, "tokens": len(tokens), "sha256": sha256})
    return shards


def publish(folder: Path, shards: dict[str, list[dict]], tokenizer: Tokenizer, source: str) -> None:
    """Write meta.json and give all files their names, in place of an earlier data set.

    If it is stopped, it can be called again. The first file for training is renamed last: the loader takes it
    as the sign that the data set is there.
    """
    counts = {split: sum(shard["tokens"] for shard in shards[split]) for split in SPLITS}
    write_meta(folder, tokenizer, source, counts=counts, shards=shards)
    for split in reversed(SPLITS):
        for i, shard in reversed(list(enumerate(shards[split]))):
            if (temporary := temporary_path(folder, split, i)).exists():
                put_in_place(temporary, folder / shard["file"])
    names = {shard["file"] for files in shards.values() for shard in files}
    for path in folder.iterdir():  # left by a larger data set
        ours = re.fullmatch(r"(train|val)(_\d{5})?\.bin|\.(train|val)_\d{5}\.bin\.tmp", path.name)
        if ours and path.name not in names:
            path.unlink()
