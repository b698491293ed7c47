"""Write a data set that fits in memory, as nanoGPT does: `train.bin`, `val.bin`, and a `meta.json`."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32
from numpy.typing import ArrayLike

from common.errors import UserError
from common.files import refusing, write_whole, written
from data.dataset import FORMAT, SPLITS
from data.spans import count_bytes, reading_on
from data.tokenizer import TiktokenTokenizer, Tokenizer, from_json, read_tokenizer

PIECE = 2**22  # characters that are encoded at once


def load_tokenizer(name: str) -> Tokenizer:
    """Load a folder's tokenizer, that of a tokenizer.json, or tiktoken's of that name. Raises UserError."""
    path = Path(name).expanduser()
    if not path.is_dir() and path.suffix != ".json":
        return TiktokenTokenizer(name)
    # The files beside a tokenizer.json say more about it.
    if (description := read_tokenizer(path.parent if path.name == "tokenizer.json" else path)) is None:
        raise UserError(f"{name}: there is no tokenizer.json, nor a vocab.json: give another --tokenizer")
    return from_json(description)


def write_text(folder: Path, text: str, tokenizer: Tokenizer, source: str) -> None:
    """Write a text as a data set, the first 90% of it for training, and print how much there is."""
    cut = int(0.9 * len(text))
    parts = text[:cut], text[cut:]
    with refusing(source, "give another text or tokenizer", UserError):
        train, val = (encode_text(tokenizer, part) for part in parts)
        counted = {split: count_bytes(tokenizer, part) for split, part in zip(SPLITS, parts, strict=True)}
    write_dataset(folder, train, val, tokenizer, source, bytes=counted)
    about = f"{len(text):,} characters, {tokenizer.vocab_size:,} symbols"
    print(f"{folder}: {about}, {len(train):,} train and {len(val):,} validation tokens")


def encode_text(tokenizer: Tokenizer, text: str) -> Int32[np.ndarray, " T"]:
    """Return the tokens of a text of any length, and around them those that the tokenizer puts there.

    Raises UserError as `Tokenizer.encode`.
    """
    before, around = (tokenizer.encode("", add_special_tokens=which) for which in ("before", True))
    pieces, begin = [before], 0
    while begin < len(text):
        end = begin + PIECE
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        part = reading_on(tokenizer, text, begin)
        pieces.append(part.encode(text[begin:end], special=False))
        begin = end
    return np.concatenate([*pieces, around[len(before) :]])


def write_dataset(
    folder: Path,
    train_ids: ArrayLike,
    val_ids: ArrayLike,
    tokenizer: Tokenizer,
    source: str,
    learned: Sequence[Bool[np.ndarray, " n"]] = (),
    **about: Any,
) -> None:
    """Write two splits of token ids and `meta.json`. `source` says in words where the text came from.

    Of conversations some of a split's tokens are `learned`. `about` are other entries of Meta.
    """
    folder, splits = Path(folder), {}
    for split, given in zip(SPLITS, (train_ids, val_ids), strict=True):
        ids = np.asarray(given)
        if ids.size == 0:
            raise UserError(f"{folder}: no tokens for {split}.bin: the text is empty or too short to split")
        splits[split] = ids.astype(token_dtype(tokenizer.vocab_size))
    # The file entered first is renamed last: the loader takes train.bin as the sign that all is there.
    with ExitStack() as stack:
        for split, tokens in splits.items():
            stack.enter_context(written(folder / f"{split}.bin")).write(tokens.data)
        counts = {split: len(tokens) for split, tokens in splits.items()}
        hashes = {split: hashlib.sha256(tokens.data) for split, tokens in splits.items()}
        for split, of_split in zip(SPLITS, learned, strict=False):
            stack.enter_context(written(folder / f"{split}.learned.bin")).write(of_split.data)
            hashes[split].update(of_split.data)
        sha256 = {split: found.hexdigest() for split, found in hashes.items()}
        write_meta(folder, tokenizer, source, counts=counts, sha256=sha256, **about)


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the type of stored tokens: little-endian uint16, or uint32 above a vocabulary of 65,535."""
    return np.dtype("<u2" if vocab_size <= 65535 else "<u4")


def write_meta(folder: Path, tokenizer: Tokenizer, source: str, **about_files) -> None:
    meta = {
        "format": FORMAT,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.description,
        "dtype": token_dtype(tokenizer.vocab_size).name,
        "source": source,
        **about_files,
    }
    write_whole(folder / "meta.json", json.dumps(meta, indent=1) + "\n")
