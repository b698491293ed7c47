"""A data set: where its folder is, what its `meta.json` says, and the tokens of each split.

A split is one file, mapped into memory and read on demand, so it may be larger than the memory.
"""

import functools
import importlib
import io
import os
import pickle
import sys
from collections.abc import Iterable
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import UInt
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from config.command_line import UserError, first_problem
from config.files import cache_folder, refusing
from data.tokenizer import END_OF_TEXT, check_description

DATA = Path(__file__).resolve().parent
SMALL_DATASETS = ("python_char", "shakespeare", "shakespeare_char")  # prepared unasked
FORMAT = 1  # the version of meta.json; one of another version is refused
SPLITS = ("train", "val")


def dataset_dir(dataset: str) -> Path:
    """Return the folder of a data set, which may not exist: in $NANOJAXGPT_DATA, in data/, or else a path."""
    kept, named = os.environ.get("NANOJAXGPT_DATA"), DATA / dataset
    if kept and os.path.isdir(Path(kept) / dataset):
        return Path(kept) / dataset
    # A checkout may be read-only, as one that several users share.
    if dataset in SMALL_DATASETS and not (is_prepared(named) or os.access(named, os.W_OK)):
        return Path(kept or cache_folder() / "data") / dataset
    return Path(dataset) if os.path.isdir(dataset) and not os.path.isdir(named) else named


def is_prepared(folder: Path) -> bool:
    return os.path.exists(folder / "train.bin")


def known_datasets() -> list[str]:
    """Return the names of the data sets below data/, prepared or not."""
    return sorted(path.name for path in DATA.iterdir() if (path / "prepare.py").exists() or is_prepared(path))


def prepare_if_missing(dataset: str) -> None:
    """Prepare one of SMALL_DATASETS if it has no train.bin. Raises UserError for another without one.

    The name may come from somebody else's checkpoint, so no other script is run.
    """
    folder = dataset_dir(dataset)
    if is_prepared(folder):
        return
    if folder.resolve() not in [dataset_dir(name).resolve() for name in SMALL_DATASETS]:
        raise UserError(
            f"dataset={dataset}: there is no {folder / 'train.bin'}: run the prepare.py of that folder, or "
            f"give another: {', '.join(known_datasets())}, or a path"
        )
    print(f"{folder / 'train.bin'} is missing: running {DATA / folder.name / 'prepare.py'}")
    importlib.import_module(f"data.{folder.name}.prepare").prepare(folder)


Split = Literal["train", "val"]
TokenCount = Annotated[int, Field(ge=0, lt=2**53)]  # OpenWebText has 9e9


@dataclass(frozen=True, config={"strict": True})
class Meta:
    """The contents of a `meta.json`."""

    vocab_size: Annotated[int, Field(gt=0, lt=2**31)]
    tokenizer: Annotated[Any, AfterValidator(check_description)]  # None: the tokens are not text
    dtype: Literal["uint8", "uint16", "uint32", "uint64"]
    counts: dict[Split, TokenCount] = field(default_factory=dict)
    sha256: dict[Split, str] = field(default_factory=dict)  # of each file; nanoGPT's bins have none
    format: Literal[1] = FORMAT


# Bins of nanoGPT's OpenWebText, which have no description; the vocabulary is its default, 50,257 padded.
NANOGPT = Meta(50304, {"type": "tiktoken", "name": "gpt2"}, "uint16")


def load_meta(dataset: str, vocab_size: int | None = None) -> Meta:
    """Read a data set's `meta.json`, or describe nanoGPT's bins. `vocab_size`, if given, takes precedence."""
    folder = dataset_dir(dataset)
    path, meta = folder / "meta.json", NANOGPT
    if path.exists():
        try:
            meta = TypeAdapter(Meta).validate_json(path.read_bytes())
        except ValidationError as error:
            again = "run prepare.py again to write it anew"
            raise UserError(f"{path}: {first_problem(error)}; {again}") from None
    elif (folder / "meta.pkl").exists():
        meta = read_pickle(folder / "meta.pkl")
    elif vocab_size is None:
        assumed = f"GPT-2's tokens and vocab_size {meta.vocab_size} (--vocab_size=N for another)"
        print(f"note: data set {dataset} has no meta.json: assuming {assumed}", file=sys.stderr)
    elif not END_OF_TEXT["gpt2"] < vocab_size <= meta.vocab_size:
        meta = replace(meta, tokenizer=None)  # other tokens, which nothing describes
    if is_prepared(folder) and not path.exists():
        meta = replace(meta, dtype=assume_dtype(folder / "train.bin", vocab_size or meta.vocab_size))
    return replace(meta, vocab_size=vocab_size) if vocab_size else meta


def assume_dtype(path: Path, vocab_size: int) -> str:
    """Return nanoGPT's uint16, or what a larger vocabulary needs. Raises UserError if the tokens deny it."""
    words = np.fromfile(path, "<u2", 2**16)
    words = words[: len(words) // 64 * 64] if vocab_size <= 2**16 else words[:0]
    wider = [n for n in (4, 2) if words.any() and not words.reshape(-1, n)[:, 1:].any()]
    # A pair of ASCII bytes, read as one token, has two bytes below 128.
    if wider or words.any() and (words > 255).mean() > 0.5 and words.view(np.uint8).max() < 128:
        found = f"uint{16 * wider[0]}" if wider else "uint8"
        raise UserError(f"{path}: looks like {found}, not uint16: say which in a meta.json (docs/guide.md)")
    return "uint16" if vocab_size <= 2**16 else "uint32"


class PlainUnpickler(pickle._Unpickler):
    """Reads dicts, lists, strings and numbers. The one in C allocates as much as a number in a file says."""

    dispatch: ClassVar[Any] = pickle._Unpickler.dispatch | {pickle.BYTEARRAY8[0]: None, pickle.LONG4[0]: None}

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"a {module}.{name}, where dicts, lists, strings and numbers are expected")


def read_pickle(path: Path) -> Meta:
    """Read nanoGPT's meta.pkl: the characters that are the tokens, or how many tokens there are."""
    with refusing(f"{path}: cannot be used", "write a meta.json instead (docs/guide.md)", Exception):
        with open(path, "rb") as file:
            values = PlainUnpickler(io.BytesIO(file.read(2**23))).load()
        stoi: Any = values.get("stoi") or {symbol: i for i, symbol in values.get("itos", {}).items()}
        symbols = sorted(stoi, key=stoi.get)
        ids = [stoi[symbol] for symbol in symbols if isinstance(symbol, str) and len(symbol) == 1]
        text = {"type": "char", "symbols": "".join(symbols)} if ids == [*range(len(stoi))] != [] else None
        return Meta(vocab_size=values.get("vocab_size", len(stoi)), tokenizer=text, dtype="uint16")


class Dataset:
    """A prepared data set, by its name or path. `tokens(split)` opens a split, once. Raises UserError."""

    def __init__(self, name: str, vocab_size: int | None = None):
        folder = dataset_dir(name)
        # The model's vocab_size, which may be padded, counts only where nothing says the data's.
        self.meta = meta = load_meta(name, None if (folder / "meta.json").exists() else vocab_size)
        self.tokens = functools.cache(lambda split: TokenFile(folder / f"{split}.bin", meta, split))


class TokenFile:
    """The tokens of a split. Raises UserError."""

    def __init__(self, path: Path, meta: Meta, split: str):
        self.path, self.vocab_size = path, meta.vocab_size
        # ValueError: it is empty, or ends within a token.
        with refusing(f"{path}: cannot be read", "run the data set's prepare.py", OSError, ValueError):
            self.ids = np.asarray(np.memmap(path, np.dtype(meta.dtype).newbyteorder("<"), mode="r"))
        if len(self) != (expected := meta.counts.get(split, len(self))):
            raise UserError(
                f"{path}: {len(self)} tokens are not the {expected} of meta.json: the file is cut short, or "
                "of another data set; run prepare.py again"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, starts: Iterable[int], width: int) -> UInt[np.ndarray, "n width"]:
        """Copy the `width` tokens from each start on. Raises UserError for what no token can be."""
        windows = np.stack([self.ids[start : start + width] for start in starts])
        if (largest := windows.max()) >= self.vocab_size:
            raise UserError(
                f"{self.path}: token id {largest} does not fit vocab_size {self.vocab_size}: "
                "the file is damaged, of another data set, or not as meta.json or --vocab_size says"
            )
        return windows
