"""Prepare this project's own book and code, which need no download, with one token per character.

    python data/book_char/prepare.py

`text.gz` holds the pages and programs of commit 921bf16, and its tests except those of tools/. It never
changes, so that every machine learns from the same text. Its 272 files are ordered by the SHA-256 of their
names, each below a line such as `==> model.py <==`. Only printable ASCII and newlines are left, 96 symbols:
± became +-. The first 90% are for training. The licence is the project's, MIT.
"""

import gzip
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.command_line import given
from common.errors import UserError, command
from data.dataset import dataset_dir
from data.tokenizer import CharTokenizer
from data.writer import write_text

TEXT = Path(__file__).with_name("text.gz")
SHA256 = "3ecd1acc39c5543c11ff229f252e812261d7aa54b93cb8dbbcde7b38c13f3f78"


@dataclass(frozen=True)
class BookOptions:
    """Prepare this project's own book and code, with one token per character."""


def prepare(folder: Path) -> None:
    content = TEXT.read_bytes() if TEXT.is_file() else b""
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise UserError(f"{TEXT}: missing or damaged: take the file from the repository again")
    text = gzip.decompress(content).decode()
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    write_text(folder, text, tokenizer, "nanoJAXGPT's book and code, commit 921bf16")


def main(argv: list[str]) -> None:
    given(argv, BookOptions)  # --help, and refuses what it does not know
    prepare(dataset_dir("book_char"))


if __name__ == "__main__":
    command(main)
