"""Prepare tiny Shakespeare in GPT-2's tokens, as nanoGPT does for finetuning.

    python data/shakespeare/prepare.py [--source=<path or URL>] [--tokenizer=gpt2]

The first 90% of the characters are for training, the rest for validation: 301,966 and 36,059 tokens, as in
nanoGPT. Another UTF-8 text, given by --source, is prepared in the same way.
"""

import sys
from pathlib import Path

# When this runs as a script, Python looks for imports in this folder only;
# `config` and `data` are two levels up.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

from config.command_line import ScriptParser, command
from data.shakespeare_char.prepare import URL, read_text
from data.tokenizer import load_tokenizer
from data.writer import write_dataset

SMALL = True  # train.py prepares it by itself: it is one megabyte, and GPT-2's vocabulary another


def prepare(folder: Path, source: str | None = None, tokenizer: str = "gpt2") -> None:
    """Write the data set into `folder`, from the path or URL `source` (default: tiny Shakespeare's)."""
    text = read_text(source)
    byte_pairs = load_tokenizer(tokenizer)
    cut = int(0.9 * len(text))
    train, val = byte_pairs.encode_ordinary(text[:cut]), byte_pairs.encode_ordinary(text[cut:])
    write_dataset(folder, train, val, byte_pairs, source or URL)
    print(f"{folder}: {len(text):,} characters, {len(train):,} train and {len(val):,} validation tokens")


def main(argv: list[str]) -> None:
    parser = ScriptParser(__doc__)
    parser.add_argument(
        "--source", metavar="PATH_OR_URL", help="a text file or its URL (default: download it)"
    )
    parser.add_argument("--tokenizer", default="gpt2", help="tiktoken's name for it, or a tokenizer.json")
    arguments = parser.parse(argv)
    prepare(Path(__file__).resolve().parent, arguments.source, arguments.tokenizer)


if __name__ == "__main__":
    command(main)
