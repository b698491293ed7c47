"""Read `meta.json`, which describes the token files beside it."""

import functools
import itertools
import os
import sys
from dataclasses import dataclass, field, replace
from typing import Any

from config.command_line import UserError, spell
from config.files import HOLDS_TOKENIZER, is_plain_name, is_whole, read_json
from data.registry import DATA, dataset_dir, is_prepared
from data.tokenizer import check_description

FORMAT = 1  # the version of meta.json; one of another version is refused
SPLITS = ("train", "val")


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


def load_meta(dataset: str) -> Meta:
    """Read a data set's `meta.json`. Without one, assume nanoGPT's bins of GPT-2 tokens and print a notice.

    Raises UserError when meta.json is broken, or when there is a meta.pkl in its place.
    """
    folder = dataset_dir(dataset)
    path = folder / "meta.json"
    if os.path.lexists(path):
        try:
            return parse_meta(read_json(path, HOLDS_TOKENIZER))
        except ValueError as error:
            raise UserError(
                f"{path}: cannot be used ({error}): run prepare.py again to write it anew"
            ) from None
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
            pass
        case _:
            raise ValueError("an entry is missing, or is not what this version writes")
    listed, sums = values.get("shards", {}), values.get("sha256", {})
    if not isinstance(listed, dict) or not set(listed) <= set(SPLITS):
        raise ValueError(f"its shards are {spell(listed)}")
    if not isinstance(sums, dict):
        raise ValueError(f"its sha256 is {spell(sums)}")
    shards = {split: parse_shards(listed[split]) for split in listed}
    sha256 = {f"{split}.bin": digest for split, digest in sums.items()}
    for shard in itertools.chain(*listed.values()):
        if "sha256" in shard:
            sha256[shard["file"]] = shard["sha256"]
    description = check_description(tokenizer)
    return Meta(vocab_size, description, dtype, {"train": train, "val": val}, shards, sha256)


def parse_shards(values: Any) -> tuple[tuple[str, int], ...]:
    """Return (name, number of tokens) of each file of a split. Raises ValueError, also for a path."""
    if not isinstance(values, list) or not values:
        raise ValueError(f"the shards of a split are {spell(values)}")
    for shard in values:
        match shard:
            case {"file": name, "tokens": tokens} if is_plain_name(name) and is_whole(tokens):
                pass
            case _:
                raise ValueError(f"a shard is {spell(shard)}")
    return tuple((shard["file"], shard["tokens"]) for shard in values)


@functools.cache  # each split of a data set reads its meta.json, and the notice is to be printed once
def _print_once(text: str) -> None:
    print(text, file=sys.stderr)
