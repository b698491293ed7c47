"""A data set: its folder, its `meta.json`, the tokens of its splits, and batches of them.

A split is one file, mapped into memory and read on demand: it may be larger than the memory. Batch i is a
pure function of (seed, split, i): a resumed run needs no loader state, and every host makes the same batch.
No thread makes batches in advance: the accelerator is still busy with the step before.
"""

import functools
import importlib
import io
import os
import pickle
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pydantic
from jaxtyping import Int32, Int64, UInt
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import AfterValidator, Field

from common.command_line import NonNegativeInt
from common.errors import UserError
from common.files import cache_folder, refusing
from data.tokenizer import END_OF_TEXT, check_description

DATA = Path(__file__).resolve().parent
# prepare_if_missing prepares these.
SMALL_DATASETS = ("book_char", "python_char", "shakespeare", "shakespeare_char")
FORMAT = 1  # the version of meta.json; another version is refused
SPLITS = ("train", "val")


def dataset_dir(dataset: str) -> Path:
    """Return the folder of a data set: in $NANOJAXGPT_DATA, in data/, or a path. It may not exist."""
    kept, named = os.environ.get("NANOJAXGPT_DATA"), DATA / dataset
    if kept and os.path.isdir(Path(kept) / dataset):
        return Path(kept) / dataset
    # A checkout that several users share may be read-only.
    if dataset in SMALL_DATASETS and not (is_prepared(named) or os.access(named, os.W_OK)):
        return Path(kept or cache_folder() / "data") / dataset
    return Path(dataset) if os.path.isdir(dataset) and not os.path.isdir(named) else named


def is_prepared(folder: Path) -> bool:
    return os.path.exists(folder / "train.bin")


def prepare_if_missing(dataset: str) -> None:
    """Prepare one of SMALL_DATASETS if it has no train.bin. Raises UserError for another without one.

    The name may come from somebody else's checkpoint, so no other script is run.
    """
    folder = dataset_dir(dataset)
    if is_prepared(folder):
        return
    if folder.resolve() not in [dataset_dir(name).resolve() for name in SMALL_DATASETS]:
        known = [x.name for x in DATA.iterdir() if (x / "prepare.py").exists() or is_prepared(x)]
        raise UserError(
            f"dataset={dataset}: there is no {folder / 'train.bin'}: run the prepare.py of that folder, "
            f"for your own text data/prepare.py, or give another: {', '.join(sorted(known))}, or a path"
        )
    print(f"{folder / 'train.bin'} is missing: running {DATA / folder.name / 'prepare.py'}")
    importlib.import_module(f"data.{folder.name}.prepare").prepare(folder)


Split = Literal["train", "val"]


class TextBytes(NamedTuple):
    """Counts a split's text in UTF-8, whatever its tokens leave out or change."""

    total: NonNegativeInt
    first: int = -1  # the first token of the text; -1: it is never predicted
    of_first: NonNegativeInt = 0  # how many bytes that one stands for


@pydantic.dataclasses.dataclass(frozen=True, config={"strict": True})
class Meta:
    """The contents of a `meta.json`."""

    vocab_size: Annotated[int, Field(gt=0, lt=2**31)]
    tokenizer: Annotated[Any, AfterValidator(check_description)]  # None: the tokens are not text
    dtype: Literal["uint8", "uint16", "uint32", "uint64"]
    counts: dict[Split, int] = field(default_factory=dict)
    sha256: dict[Split, str] = field(default_factory=dict)  # a hash of each file; nanoGPT's have none
    bytes: dict[Split, TextBytes] = field(default_factory=dict)  # of the text; of conversations: the answers
    # Tokens of a row of packed conversations; <split>.learned.bin has a byte per token, 1 if it is learned.
    row: Annotated[int, Field(gt=1)] | None = None
    format: Literal[1] = FORMAT


# nanoGPT's bins of OpenWebText have no description. Its default vocabulary is GPT-2's 50,257, padded.
NANOGPT = Meta(50304, {"type": "tiktoken", "name": "gpt2"}, "uint16")


def load_meta(dataset: str, vocab_size: int | None = None) -> Meta:
    """Read a data set's `meta.json`, or describe nanoGPT's bins, of `vocab_size` tokens if it is given."""
    folder, meta = dataset_dir(dataset), NANOGPT
    if (path := folder / "meta.json").exists():
        with refusing(f"{path}: cannot be used", "run prepare.py again", pydantic.ValidationError):
            return pydantic.TypeAdapter(Meta).validate_json(path.read_bytes())
    if (folder / "meta.pkl").exists():
        meta = read_pickle(folder / "meta.pkl")
    elif vocab_size is None:
        assumed = f"GPT-2's tokens and vocab_size {meta.vocab_size} (--vocab_size=N for another)"
        print(f"note: data set {dataset} has no meta.json: assuming {assumed}", file=sys.stderr)
    elif not END_OF_TEXT["gpt2"] < vocab_size <= meta.vocab_size:
        meta = replace(meta, tokenizer=None)  # other tokens, which nothing describes
    meta = replace(meta, vocab_size=vocab_size or meta.vocab_size)
    if is_prepared(folder):
        meta = replace(meta, dtype=assume_dtype(folder / "train.bin", meta.vocab_size))
    return meta


def assume_dtype(path: Path, vocab_size: int) -> str:
    """Return uint16, as nanoGPT writes, or uint32 if the vocabulary needs it. Raises UserError for others."""
    if vocab_size > 2**16:
        return "uint32"
    words = np.fromfile(path, "<u2", 2**16)
    words = words[: len(words) // 64 * 64]
    wider = [n for n in (4, 2) if words.any() and not words.reshape(-1, n)[:, 1:].any()]
    # A pair of ASCII bytes, read as one token, has two bytes below 128.
    if wider or words.any() and (words > 255).mean() > 0.5 and words.view(np.uint8).max() < 128:
        found = f"uint{16 * wider[0]}" if wider else "uint8"
        raise UserError(f"{path}: looks like {found}, not uint16: say which in a meta.json (docs/guide.md)")
    return "uint16"


class PlainUnpickler(pickle._Unpickler):
    """Reads dicts, lists, strings and numbers. pickle's own, in C, allocates any size that a file states."""

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


class TokenFile:
    """The tokens of a split, mapped from its file. Raises UserError for a damaged one."""

    def __init__(self, folder: Path, split: str, meta: Meta):
        self.split, self.vocab_size = split, meta.vocab_size
        self.path = path = folder / f"{split}.bin"
        # An empty file, or one that ends within a token, is a ValueError.
        with refusing(f"{path}: cannot be read", "run the data set's prepare.py", OSError, ValueError):
            self.ids = np.asarray(np.memmap(path, np.dtype(meta.dtype).newbyteorder("<"), mode="r"))
        if len(self) != (expected := meta.counts.get(split, len(self))):
            raise UserError(
                f"{path}: {len(self)} tokens are not the {expected} of meta.json: the file is cut short, or "
                "of another data set; run prepare.py again"
            )
        self.row, self.learned = meta.row, None
        if meta.row:
            path = path.with_suffix(".learned.bin")
            with refusing(f"{path}: cannot be read", "run prepare.py again", OSError, ValueError):
                self.learned = np.asarray(np.memmap(path, bool, mode="r"))
            if len(self) % meta.row or len(self.learned) != len(self):
                raise UserError(
                    f"{path}: not of {len(self)} tokens in rows of {meta.row}: run prepare.py again"
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


class Dataset:
    """A prepared data set, found by its name or path. Raises UserError."""

    def __init__(self, name: str, vocab_size: int | None = None):
        self.folder, self.meta = dataset_dir(name), load_meta(name, vocab_size)

    def tokens(self, split: str) -> TokenFile:
        return TokenFile(self.folder, split, self.meta)


Batch = tuple[Int32[np.ndarray, "B T"], Int32[np.ndarray, "B T"]]


@functools.lru_cache(maxsize=2)
def epoch_order(seed: tuple[int, ...], n: int) -> Int64[np.ndarray, " n"]:
    """Return the order of an epoch's n windows."""
    # It takes 0.4 s for OpenWebText's 8.8 million windows of 1,024; Grain's pure shuffle takes 6 us a window.
    return np.random.default_rng(seed).permutation(n)


@dataclass(frozen=True)
class Batches:
    """The batches of one split. `batches(i)` returns int32 arrays x and y (B, T), where y is one token later.

    `sampling="random"` draws windows of T tokens that start anywhere, as nanoGPT does. "epoch" cuts the split
    into windows that do not overlap, and visits each once per epoch, in a new order. The windows of packed
    conversations are their rows; there a target that is not learned is -1.
    """

    tokens: TokenFile
    B: int
    T: int
    seed: int
    sampling: str = "random"

    def __post_init__(self):
        if len(self.tokens) <= self.T:
            raise UserError(
                f"{self.tokens.path}: {len(self.tokens)} tokens are fewer than block_size + 1 = "
                f"{self.T + 1}: use a smaller block_size or more text"
            )
        if self.tokens.row not in (None, self.T + 1):
            raise UserError(
                f"{self.tokens.path}: its rows of conversations need --block_size={self.tokens.row - 1}: "
                f"give that, or run prepare.py with --block_size={self.T}"
            )

    def __call__(self, i: int) -> Batch:
        starts = self.starts(i)
        windows = self.tokens.read(starts, self.T + 1)
        x, y = windows[:, :-1].astype(np.int32, order="C"), windows[:, 1:].astype(np.int32, order="C")
        if self.tokens.learned is not None:
            learned = [self.tokens.learned[start + 1 : start + 1 + self.T] for start in starts]
            y[~np.stack(learned)] = -1
        return x, y

    def starts(self, i: int) -> list[int]:
        """Return where the windows of batch i begin."""
        B, T, n_tokens, row = self.B, self.T, len(self.tokens), self.tokens.row
        key = (self.seed, SPLITS.index(self.tokens.split))
        if self.sampling == "random":
            n = n_tokens // row if row else n_tokens - T
            return ((row or 1) * np.random.default_rng((*key, i)).integers(n, size=B)).tolist()
        n = n_tokens // row if row else (n_tokens - 1) // T  # windows of an epoch
        return [(row or T) * int(epoch_order((*key, j // n), n)[j % n]) for j in range(i * B, (i + 1) * B)]

    def every_window(self, stride: int | None = None) -> Iterator[Batch]:
        """Yield the whole split in order as x, y: each token but the first is a target once.

        Windows begin `stride` tokens apart (default: block_size). Tokens that a window shares with the one
        before are context: their targets are -1, as are those that fill the last batch.
        """
        B, T, learned = self.B, self.T, self.tokens.learned
        stride = self.tokens.row or stride or T
        span = (B - 1) * stride + T + 1  # tokens of a batch
        for begin in range(0, len(self.tokens) - 1 - T + stride, B * stride):
            n_tokens = min(span, len(self.tokens) - begin)
            filled = np.full(span, -1, np.int32)
            filled[:n_tokens] = self.tokens.read([begin], n_tokens)[0]
            targets = filled.copy()
            if learned is not None:
                targets[:n_tokens][~learned[begin : begin + n_tokens]] = -1
            x, y = (sliding_window_view(each, T + 1)[::stride] for each in (filled, targets))
            x, y = np.maximum(x[:, :-1], 0), y[:, 1:].copy()
            y[0 if begin else 1 :, : max(0, T - stride)] = -1  # no window comes before the first
            yield x, y
