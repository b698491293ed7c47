"""Describe character data that nanoGPT prepared: write the meta.json that train.py reads, beside train.bin.

    python data/describe_chars.py --dataset=mine                    a folder below data/, or a path
    python data/describe_chars.py --dataset=mine --source=mine.txt  if its text is not <folder>/input.txt

nanoGPT's prepare.py keeps the characters of its ids in meta.pkl. A pickle can run code, so it is not read:
the ids are those of the text's characters, sorted, and the text says them. Every token of train.bin and
val.bin is compared with it. Neither file is changed.
"""

import sys
from pathlib import Path

import numpy as np

# Run as a script, Python looks for imports in this folder only; `config` and `data` are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

from config.command_line import ScriptParser, UserError, command
from config.files import open_file
from data.registry import dataset_dir
from data.tokenizer import CharTokenizer
from data.writer import token_dtype, write_meta


def describe(folder: Path, source: Path) -> None:
    """Write meta.json into `folder`, whose train.bin and val.bin hold the characters of the text `source`.

    Raises UserError when a file cannot be read, and when the tokens are not those of the text.
    """
    splits = {split: read_tokens(folder / f"{split}.bin") for split in ("train", "val")}
    text = read_text(source)
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    if token_dtype(tokenizer.vocab_size) != "uint16":
        raise UserError(
            f"{source}: {tokenizer.vocab_size:,} different characters are more than nanoGPT's uint16 holds: "
            "prepare it with `python data/shakespeare_char/prepare.py --source=<text>`"
        )
    check_same(folder, source, np.concatenate(list(splits.values())), tokenizer.encode(text))
    write_meta(folder, splits, tokenizer, str(source))
    print(
        f"{folder / 'meta.json'}: {tokenizer.vocab_size} symbols, "
        f"{len(splits['train']):,} train and {len(splits['val']):,} validation tokens"
    )


def read_tokens(path: Path) -> np.ndarray:
    """Read the uint16 tokens of a .bin file. Raises UserError."""
    try:
        with open_file(path) as file:
            content = file.read()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}): give the folder that nanoGPT's prepare.py wrote to"
        ) from None
    if len(content) % 2:
        raise UserError(
            f"{path}: {len(content)} bytes are not a whole number of uint16 tokens: prepare it anew"
        )
    return np.frombuffer(content, "<u2")


def read_text(path: Path) -> str:
    """Read the text as nanoGPT does, which makes `\\n` of every end of a line. Raises UserError."""
    try:
        with open_file(path, "r") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read as UTF-8 text ({error}): "
            "give the text that nanoGPT's prepare.py read, with --source=<path>"
        ) from None
    if not text:
        raise UserError(f"{path}: the file is empty: give the text that nanoGPT's prepare.py read")
    return text


def check_same(folder: Path, source: Path, tokens: np.ndarray, expected: np.ndarray) -> None:
    """Raise UserError unless the tokens of train.bin and then val.bin are those of the text."""
    remedy = "give the text that nanoGPT's prepare.py read, with --source=<path>"
    if len(tokens) != len(expected):
        raise UserError(
            f"{folder}: train.bin and val.bin have {len(tokens):,} tokens, and {source} has "
            f"{len(expected):,} characters: {remedy}"
        )
    if (different := np.flatnonzero(tokens != expected)).size:
        i = different[0]
        raise UserError(
            f"{folder}: token {i:,} of train.bin and val.bin is {tokens[i]}, and the character there in "
            f"{source} is number {expected[i]} of its characters, sorted: {remedy}"
        )


def main(argv: list[str]) -> None:
    parser = ScriptParser(__doc__)
    parser.add_argument("--dataset", required=True, metavar="FOLDER", help="where train.bin and val.bin are")
    parser.add_argument("--source", type=Path, metavar="PATH", help="the text (default: <folder>/input.txt)")
    given = parser.parse(argv)
    folder = dataset_dir(given.dataset)
    # A path that the user gives may be a link.
    describe(folder, given.source.resolve() if given.source else folder / "input.txt")


if __name__ == "__main__":
    command(main)
