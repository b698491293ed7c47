"""Data sets on disk, and the batches that a training run reads from them.

A data set is a folder with `train.bin` and `val.bin`, raw token ids as nanoGPT writes them, and a `meta.json`
beside them. A large split is in several files, which `meta.json` lists.

Batch i is a pure function of (seed, split, i). So a resumed run needs no loader state, and every host can
make the same batch.

There is no background thread. A batch of 12 x 64 takes 14 microseconds to make and one of 64 x 256 takes 20,
and 2 more for its checks, less than a ready one takes to fetch from a thread (27 to 54). A call of a step
returns before an accelerator has finished it, and the next batch is made meanwhile.
"""

import difflib
import functools
import importlib.util
import mmap
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from config.command_line import UserError, spell
from config.files import HOLDS_TOKENIZER, is_plain_name, is_whole, open_file, read_json
from data.shards import Shards, check_sha256
from data.tokenizer import check_description
from data.writer import FORMAT

DATA = Path(__file__).resolve().parent
SPLITS = ("train", "val")
# A split up to this size is checked for ids outside the vocabulary when it is opened, which takes at most
# 30 ms once it is in memory. A larger one would delay the start. Batches are checked in either case.
CHECK_AT_OPEN = 256 * 2**20  # bytes


@dataclass(frozen=True)
class Meta:
    """The contents of a `meta.json`. `counts` has the number of tokens by split, and is empty without one."""

    vocab_size: int
    tokenizer: dict | None  # for data.tokenizer.from_json; None when the tokens are not text
    dtype: str  # "uint16" | "uint32"
    counts: dict[str, int] = field(default_factory=dict)
    shards: dict[str, tuple] = field(default_factory=dict)  # by split: (name, number of tokens) of each file
    sha256: dict[str, str] = field(default_factory=dict)  # by the name of a file, where it is known

    def files(self, split: str) -> tuple[tuple[str, int | None], ...]:
        """Return (name, number of tokens) for each file of a split; the number is None where unknown."""
        return self.shards.get(split, ((f"{split}.bin", self.counts.get(split)),))


# nanoGPT's prepare.py for OpenWebText writes no description. This describes its bins, with nanoGPT's default
# vocabulary (GPT-2's 50,257 padded to a multiple of 64).
NANOGPT = Meta(50304, {"type": "tiktoken", "name": "gpt2"}, "uint16")


def dataset_dir(dataset: str) -> Path:
    """Return the folder of a data set, which is a name under this repository's data/, or else a path.

    Where NANOJAXGPT_DATA names a folder, such as a disk that machines share, a data set in there comes first.
    The folder may not exist.
    """
    if (kept := os.environ.get("NANOJAXGPT_DATA")) and os.path.isdir(Path(kept) / dataset):
        return Path(kept) / dataset
    named = DATA / dataset
    path = Path(os.path.expanduser(dataset))
    return path if os.path.isdir(path) and not os.path.isdir(named) else named


def prepare_if_missing(dataset: str) -> None:
    """Prepare a small data set that has no train.bin yet, and print that it is prepared.

    The name may come from another's checkpoint, so that only a script of this project is run.

    Raises UserError when the data set is unknown, or too large to prepare without being asked to, or when its
    script is not below this repository's data/.
    """
    folder = dataset_dir(dataset)
    script = folder / "prepare.py"
    if is_prepared(folder):
        return
    if not os.path.isdir(folder):
        known = known_datasets()
        nearest = difflib.get_close_matches(dataset, known, n=1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise UserError(
            f"dataset={dataset}: no such data set; {hint}there are {', '.join(known)}, or give a path"
        )
    if not script.exists():
        raise UserError(
            f"dataset={dataset}: {folder} has neither train.bin nor prepare.py: give a folder with train.bin"
        )
    if not script.resolve().is_relative_to(DATA.resolve()):
        raise UserError(
            f"dataset={dataset}: {folder / 'train.bin'} is missing, and no script outside of {DATA} is run "
            f"unasked: if you trust it, run `python {script}` first"
        )
    if not is_small(dataset):
        raise UserError(f"dataset={dataset}: {folder / 'train.bin'} is missing: run `python {script}` first")
    print(f"{folder / 'train.bin'} is missing: running {script}")
    spec = importlib.util.spec_from_file_location("prepare", script)
    assert spec is not None and spec.loader is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.prepare(folder)


def known_datasets() -> list[str]:
    """Return the names of the data sets below data/, prepared or not."""
    return sorted(path.name for path in DATA.iterdir() if (path / "prepare.py").exists() or is_prepared(path))


def is_small(dataset: str) -> bool:
    """Tell whether a data set with a prepare.py is one that train.py prepares by itself."""
    # SMALL is read from the text: running an unknown prepare.py to look at it might start a large download.
    text = (dataset_dir(dataset) / "prepare.py").read_text(encoding="utf-8")
    return re.search(r"^SMALL = True\b", text, re.MULTILINE) is not None


def is_prepared(folder: Path) -> bool:
    """Return whether the folder has the tokens of a data set."""
    return any(os.path.exists(folder / name) for name in ("train.bin", "train_00000.bin"))


def load_meta(dataset: str) -> Meta:
    """Read a data set's `meta.json`. Without one, assume nanoGPT's bins of GPT-2 tokens and print a notice.

    Raises UserError when meta.json is broken, or when there is a meta.pkl in its place.
    """
    folder = dataset_dir(dataset)
    path = folder / "meta.json"
    if not os.path.lexists(path):
        if (folder / "meta.pkl").exists():
            text = "" if (folder / "input.txt").exists() else " --source=<the text it was made of>"
            raise UserError(
                f"{folder / 'meta.pkl'}: a pickle can run code, so it is never read: write meta.json with "
                f"`python {DATA / 'describe_chars.py'} --dataset={folder}{text}`"
            )
        _print_once(
            f"note: {folder} has no meta.json: assuming GPT-2 tokens, uint16, vocab_size {NANOGPT.vocab_size}"
        )
        return NANOGPT
    try:
        return parse_meta(read_json(path, HOLDS_TOKENIZER))
    except ValueError as error:
        raise UserError(f"{path}: cannot be used ({error}): run prepare.py again to write it anew") from None


def load_or_assume_meta(dataset: str, vocab_size: int | None) -> Meta:
    """Read the description of a data set, or assume one where it is not prepared."""
    if is_prepared(dataset_dir(dataset)):
        meta = load_meta(dataset)
    else:
        meta = NANOGPT
        if vocab_size is None:
            print(
                f"note: data set {dataset} is not prepared: taking vocab_size {meta.vocab_size} "
                "(--vocab_size=N for another)"
            )
    return replace(meta, vocab_size=vocab_size or meta.vocab_size)


def parse_meta(values: Any) -> Meta:
    """Return what a `meta.json` says. Raises ValueError when that is not what this version writes."""
    match values:
        case {
            "format": version,
            "vocab_size": vocab_size,
            "tokenizer": tokenizer,
            "dtype": "uint16" | "uint32" as dtype,
            "counts": {"train": train, "val": val},
        } if (
            is_whole(version)
            and version == FORMAT
            and is_whole(vocab_size)
            and vocab_size > 0
            and all(is_whole(count, below=2**53) for count in (train, val))  # OpenWebText has 9e9 tokens
        ):
            shards = values.get("shards", {})
            if not isinstance(shards, dict) or not set(shards) <= set(SPLITS):
                raise ValueError(f"its shards are {spell(shards)}")
            files = {split: parse_shards(shards[split]) for split in shards}
            if not isinstance(sums := values.get("sha256", {}), dict):
                raise ValueError(f"its sha256 is {spell(sums)}")
            sums = {f"{split}.bin": sha256 for split, sha256 in sums.items()}
            sums |= {x["file"]: x["sha256"] for split in shards for x in shards[split] if "sha256" in x}
            counts = {"train": train, "val": val}
            return Meta(vocab_size, check_description(tokenizer), dtype, counts, files, sums)
    raise ValueError("an entry is missing, or is not what this version writes")


def parse_shards(values: Any) -> tuple[tuple[str, int], ...]:
    """Return (name, number of tokens) of each file of a split. Raises ValueError, also for a path."""
    match values:
        case [_, *_]:
            files = []
            for shard in values:
                match shard:
                    case {"file": name, "tokens": tokens} if is_plain_name(name) and is_whole(tokens):
                        files.append((name, tokens))
                    case _:
                        raise ValueError(f"a shard is {spell(shard)}")
            return tuple(files)
    raise ValueError(f"the shards of a split are {spell(values)}")


@functools.cache  # each split of a data set reads its meta.json, and the notice is to be printed once
def _print_once(text: str) -> None:
    print(text, file=sys.stderr)


class Batches:
    """The batches of one split. `batches(i)` returns int32 arrays x and y (B, T), where y is one token later.

    `sampling="random"` draws windows of block_size tokens that start anywhere, as nanoGPT does.
    `sampling="epoch"` divides the split into floor((tokens - 1) / block_size) windows that do not overlap. It
    visits every window once per epoch, in an order shuffled anew for each epoch. A batch may hold the end of
    one epoch and the start of the next. The tokens after the last whole window, fewer than block_size, are
    left out.

    Opening raises UserError when a .bin is missing, empty, cut short, not as meta.json says (its sha256
    included), or has ids outside the vocabulary, and when the split is shorter than block_size + 1. Files may
    change while they are read: each batch is checked as well, and raises UserError then.
    """

    def __init__(
        self, dataset: str, split: str, batch_size: int, block_size: int, seed: int, sampling: str = "random"
    ):
        folder, meta = dataset_dir(dataset), load_meta(dataset)
        self.path = folder / meta.files(split)[0][0]  # named in errors
        self.batch_size, self.block_size = batch_size, block_size
        self._starts = {"random": self._random_starts, "epoch": self._epoch_starts}[sampling]
        self.key = (seed, SPLITS.index(split))
        self.vocab_size = meta.vocab_size
        dtype = np.dtype(meta.dtype).newbyteorder("<")
        self.maps = [
            (folder / name, _map_file(folder / name, dtype, count, meta.sha256.get(name)))
            for name, count in meta.files(split)
        ]
        self.tokens = Shards([np.frombuffer(memory, dtype) for _, memory in self.maps])
        if len(self.tokens) < block_size + 1:
            raise UserError(
                f"{self.path}: {len(self.tokens)} tokens are fewer than block_size + 1 = {block_size + 1}: "
                "use a smaller block_size or more text"
            )
        if self.tokens.nbytes <= CHECK_AT_OPEN:
            self._check_ids(self.tokens)
        # Window s is the block_size + 1 tokens from s on. It is a view: one indexing copies a whole batch.
        self.windows = self.tokens.windows(block_size + 1)
        self.windows_per_epoch = (len(self.tokens) - 1) // block_size
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)

    def __call__(self, i: int, rows: slice | np.ndarray = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of batch i, or of those `rows` of it: int32 (B, T) each.

        Raises UserError when an id is outside the vocabulary, or a file has become shorter.
        """
        return self._copy_windows(self._starts(i)[rows])

    def epoch(self, i: int) -> float:
        """Return how often the batches before batch i went through the split (on average, when random)."""
        return i * self.batch_size / self.windows_per_epoch

    def every_window(self, stride: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the whole split in order as x, y, int32 (B, T): each token but the first is a target once.

        Windows begin `stride` tokens apart, from 1 to block_size; the default is block_size, so that they do
        not overlap. Tokens that a window shares with the one before are context, and their targets are -1.
        The last batch is filled up to the shape of the others, with targets -1.
        """
        B, T = self.batch_size, self.block_size
        stride = stride or T
        n_targets = len(self.tokens) - 1
        span = (B - 1) * stride + T + 1  # tokens of a batch
        for begin in range(0, n_targets - T + stride, B * stride):
            self._check_sizes()
            tokens = self.tokens[begin : begin + span].copy()
            self._check_ids(tokens)
            filled = np.full(span, -1, np.int32)
            filled[: len(tokens)] = tokens
            windows = np.lib.stride_tricks.sliding_window_view(filled, T + 1)[::stride]
            x, y = np.maximum(windows[:, :-1], 0), windows[:, 1:].copy()
            y[0 if begin else 1 :, : T - stride] = -1  # the first window of all has none before it
            yield x, y

    def _random_starts(self, i: int) -> np.ndarray:
        # A generator per batch costs 7 microseconds (a bare Philox with an explicit key costs the same).
        return np.random.default_rng((*self.key, i)).integers(len(self.windows), size=self.batch_size)

    def _epoch_starts(self, i: int) -> np.ndarray:
        drawn = np.arange(i * self.batch_size, (i + 1) * self.batch_size)
        epochs, places = np.divmod(drawn, self.windows_per_epoch)
        windows = [self._order(e)[places[epochs == e]] for e in range(epochs[0], epochs[-1] + 1)]
        return np.concatenate(windows) * self.block_size

    def _shuffle(self, epoch: int) -> np.ndarray:
        # Grain's MapDataset.shuffle is as pure, but it takes 6 microseconds per window (0.4 ms for a batch of
        # 64) and 0.5 s to import. A permutation takes 0.3 ms for Shakespeare's 15,685 windows of 64, once per
        # epoch, and 0.4 s for OpenWebText's 8.8 million windows of 1,024.
        return np.random.default_rng((*self.key, epoch)).permutation(self.windows_per_epoch)

    def _copy_windows(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._check_sizes()
        windows = self.windows[starts]
        # The copy is checked, since the file may change at any time. This takes 1.5 microseconds for 12 x 64,
        # 2.0 for 64 x 256 and 1.8 for 12 x 1,024.
        self._check_ids(windows)
        return windows[:, :-1].astype(np.int32, order="C"), windows[:, 1:].astype(np.int32, order="C")

    def _check_sizes(self) -> None:
        # To read memory beyond the end of its file would kill the process (SIGBUS). 0.5 microseconds a file.
        for path, memory in self.maps:
            if memory.size() < len(memory):
                raise UserError(f"{path}: the file was cut short while it was read: run prepare.py again")

    def _check_ids(self, tokens: np.ndarray | Shards) -> None:
        if (largest := tokens.max()) >= self.vocab_size:
            raise UserError(
                f"{self.path}: token id {largest} does not fit vocab_size {self.vocab_size}: "
                "the file is damaged or of another data set; run prepare.py again"
            )


def _map_file(path: Path, dtype: np.dtype, count: int | None, sha256: str | None) -> mmap.mmap:
    """Map the token ids at `path` into memory. They are read on demand, so the file may exceed the memory.

    The map keeps the file open: its `size()` is the file's, at any time.

    Raises UserError when the file is missing, empty, not `count` tokens long, or not of that sha256.
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
