"""Read `meta.json`, which describes the token files beside it."""

import itertools
import os
import sys
from dataclasses import dataclass, field, replace
from typing import Any

from config.command_line import UserError, spell
from config.files import is_plain_name, is_whole, read_json
from data.registry import DATA, dataset_dir, is_prepared
from data.tokenizer import check_description

FORMAT = 1  # the version of meta.json; one of another version is refused
SPLITS = ("train", "val")


@dataclass(frozen=True)
class Meta:
    """The contents of a `meta.json`."""

    vocab_size: int
    tokenizer: dict | None  # for data.tokenizer.from_json; None when the tokens are not text
    dtype: str  # "uint16" | "uint32"
    counts: dict[str, int] = field(default_factory=dict)  # tokens of each split, where it is known
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
            return parse_meta(read_json(path))
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
    note = f"note: {folder} has no meta.json: assuming GPT-2 tokens, uint16, vocab_size {NANOGPT.vocab_size}"
    print(note, file=sys.stderr)
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
    try:
        version, vocab_size = values["format"], values["vocab_size"]
        tokenizer, dtype = values["tokenizer"], values["dtype"]
        counts = {split: values["counts"][split] for split in SPLITS}
        listed = dict(values.get("shards", {}).items())
        shards = {split: [(file["file"], file["tokens"]) for file in listed[split]] for split in listed}
        sha256 = {f"{split}.bin": digest for split, digest in values.get("sha256", {}).items()}
        sha256 |= {file["file"]: file.get("sha256") for split in listed for file in listed[split]}
        valid = (
            is_whole(version)
            and version == FORMAT
            and is_whole(vocab_size)
            and vocab_size > 0
            and dtype in ("uint16", "uint32")
            and all(is_whole(count, below=2**53) for count in counts.values())  # OpenWebText has 9e9 tokens
            and set(shards) <= set(SPLITS)
            and all(shards.values())  # no list is empty
        )
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise ValueError("an entry is missing, or is not what this version writes")
    for name, tokens in itertools.chain(*shards.values()):
        if not (is_plain_name(name) and is_whole(tokens)):  # a path would lead out of the folder
            raise ValueError(f"a shard is {spell(name)}, of {spell(tokens)} tokens")
    files = {split: tuple(files) for split, files in shards.items()}
    return Meta(vocab_size, check_description(tokenizer), dtype, counts, files, sha256)
