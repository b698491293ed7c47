"""Prepare tiny Shakespeare in GPT-2's tokens, as nanoGPT does for finetuning.

    python data/shakespeare/prepare.py [--source=<path or URL>] [--tokenizer=gpt2]

The first 90% of the characters are for training: 301,966 and 36,059 tokens, as in nanoGPT. Any other UTF-8
text is prepared in the same way.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from config.command_line import command
from data.shakespeare_char.prepare import URL, parser, read_text
from data.writer import load_tokenizer, write_text


def prepare(folder: Path, source: str | None = None, tokenizer: str = "gpt2") -> None:
    text = read_text(source)
    summary = write_text(folder, text, load_tokenizer(tokenizer), source or URL)
    print(f"{folder}: {len(text):,} characters, {summary}")


def main(argv: list[str]) -> None:
    options = parser(__doc__)
    options.add_argument("--tokenizer", default="gpt2", help="tiktoken's name for it, or a tokenizer.json")
    prepare(Path(__file__).parent, **vars(options.parse(argv)))


if __name__ == "__main__":
    command(main)
