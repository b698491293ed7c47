"""Write a data set: raw token ids in `train.bin` and `val.bin`, as nanoGPT does, and a `meta.json`.

`write_dataset` is for a data set that fits in memory; `documents.py` streams any other. The loader reads both
in the same way.
"""

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from config.command_line import UserError
from config.files import write_whole, written
from data.meta import FORMAT
from data.tokenizer import Tokenizer


def write_dataset(
    folder: Path,
    train_ids: ArrayLike,
    val_ids: ArrayLike,
    tokenizer: Tokenizer,
    source: str,
) -> None:
    """Write the two splits and `meta.json` into `folder`, and create it if it is missing.

    The ids are one-dimensional integers below `tokenizer.vocab_size`. They are stored little-endian, as
    uint16, or as uint32 when the vocabulary is larger than 65,535. `source` says in words where the text came
    from. Raises UserError when a split is empty, an id does not fit the vocabulary, or the folder cannot be
    written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_files(folder, {"train": train_ids, "val": val_ids}, tokenizer, source)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the data set ({error}): make room or choose another folder"
        ) from None


def write_meta(folder: Path, splits: dict[str, np.ndarray], tokenizer: Tokenizer, source: str) -> None:
    """Write `meta.json` alone, about the tokens that the .bin files of `folder` hold already.

    Raises UserError when it cannot be written.
    """
    meta = common_meta(tokenizer, source)
    meta["counts"] = {split: len(tokens) for split, tokens in splits.items()}
    meta["sha256"] = {split: hashlib.sha256(tokens.data).hexdigest() for split, tokens in splits.items()}
    text = json.dumps(meta, indent=1) + "\n"
    write_whole(folder / "meta.json", text, "make room or check its permissions")


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the type that tokens are stored in: little-endian uint16, or uint32 above 65,535 tokens."""
    return np.dtype("<u2" if vocab_size <= 65535 else "<u4")


def common_meta(tokenizer: Tokenizer, source: str) -> dict:
    """Return the entries of `meta.json` that every data set has; the caller adds those about its files."""
    return {
        "format": FORMAT,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.to_json(),
        "dtype": token_dtype(tokenizer.vocab_size).name,
        "source": source,
    }


def _write_files(folder: Path, splits: dict[str, ArrayLike], tokenizer: Tokenizer, source: str) -> None:
    dtype = token_dtype(tokenizer.vocab_size)
    meta = common_meta(tokenizer, source) | {"counts": {}, "sha256": {}}
    # The last file entered is the first to get its name. The loader takes train.bin as the sign that the data
    # set is there, so it comes last of all: a process killed between two renames leaves a data set that will
    # be prepared again, never bins without their vocabulary.
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(written(folder / name, "make room or choose another folder"))
            for name in ("train.bin", "val.bin", "meta.json")
        }
        for split, ids in splits.items():
            tokens = _check_ids(folder / f"{split}.bin", ids, tokenizer.vocab_size).astype(dtype)
            files[f"{split}.bin"].write(tokens.data)
            meta["counts"][split] = len(tokens)
            meta["sha256"][split] = hashlib.sha256(tokens.data).hexdigest()
        files["meta.json"].write((json.dumps(meta, indent=1) + "\n").encode())


def _check_ids(path: Path, ids: ArrayLike, vocab_size: int) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.size == 0:
        raise UserError(f"{path}: nothing to write: the source text is empty or too short to split")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise UserError(
            f"{path}: token ids {ids.min()} to {ids.max()} do not fit a vocabulary of {vocab_size}"
        )
    return ids
