"""Prepare tiny Shakespeare in GPT-2's tokens, as nanoGPT does for finetuning.

    python data/shakespeare/prepare.py [--source=<path or URL>] [--to=<folder>] [--tokenizer=gpt2]

The first 90% of the characters are for training: 301,966 and 36,059 tokens, as in nanoGPT. Any other UTF-8
text is prepared in the same way.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.command_line import Name, given
from common.errors import command
from data.dataset import dataset_dir
from data.shakespeare_char.prepare import URL, TextOptions, read_text
from data.writer import load_tokenizer, write_text


@dataclass(frozen=True)
class TokenOptions(TextOptions):
    program: ClassVar[str] = "data/shakespeare/prepare.py"
    purpose: ClassVar[str] = "Prepare tiny Shakespeare, or another text, in GPT-2's tokens or others."

    to: Name = str(dataset_dir("shakespeare"))  # folder of the data set
    tokenizer: Name = "gpt2"  # tiktoken's name for it, or a tokenizer.json


def prepare(folder: Path, source: str | None = None, tokenizer: str = "gpt2") -> None:
    text = read_text(source)
    summary = write_text(folder, text, load_tokenizer(tokenizer), source or URL)
    print(f"{folder}: {len(text):,} characters, {summary}")


def main(argv: list[str]) -> None:
    options = TokenOptions(**given(argv, TokenOptions))
    prepare(Path(options.to), options.source, options.tokenizer)


if __name__ == "__main__":
    command(main)
