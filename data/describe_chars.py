"""Describe character data that nanoGPT prepared: write the meta.json that train.py reads, beside train.bin.

    python data/describe_chars.py --dataset=mine                    a folder below data/, or a path
    python data/describe_chars.py --dataset=mine --source=mine.txt  if its text is not <folder>/input.txt

nanoGPT keeps the characters of its ids in meta.pkl. A pickle can run code, so it is not read: the ids are
those of the text's characters, sorted. Every token is compared with the text. Neither .bin file is changed.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # Python looks beside a script only

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  first: quiet Ctrl-C

from config.command_line import ScriptParser, UserError, command
from config.files import open_file
from data.meta import SPLITS
from data.registry import dataset_dir
from data.tokenizer import CharTokenizer
from data.writer import describe_splits, token_dtype, write_meta

REMEDY = "give the text that nanoGPT's prepare.py read, with --source=<path>"


def describe(folder: Path, source: Path) -> None:
    """Write meta.json into `folder`, whose train.bin and val.bin hold the characters of the text `source`.

    Raises UserError when they do not, or a file cannot be read.
    """
    contents = {split: read(folder / f"{split}.bin") for split in SPLITS}
    text = read(source, "r")  # as nanoGPT reads it, which makes \n of every end of a line
    if not text:
        raise UserError(f"{source}: the file is empty: {REMEDY}")
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    if token_dtype(tokenizer.vocab_size) != "uint16":
        raise UserError(
            f"{source}: {tokenizer.vocab_size:,} different characters are more than nanoGPT's uint16 holds: "
            "prepare it with `python data/shakespeare_char/prepare.py --source=<text>`"
        )
    found, expected = b"".join(contents.values()), tokenizer.encode(text).astype("<u2").tobytes()
    if found != expected or any(len(content) % 2 for content in contents.values()):
        raise UserError(
            f"{folder}: the {len(found) // 2:,} tokens of train.bin and val.bin are not the {len(text):,} "
            f"characters of {source}: {REMEDY}"
        )
    splits = {split: np.frombuffer(content, "<u2") for split, content in contents.items()}
    write_meta(folder, tokenizer, str(source), **describe_splits(splits))
    print(
        f"{folder / 'meta.json'}: {tokenizer.vocab_size} symbols, "
        f"{len(splits['train']):,} train and {len(splits['val']):,} validation tokens"
    )


def read(path: Path, mode: str = "rb"):
    """Read a file: bytes, or text with mode "r". Raises UserError."""
    try:
        with open_file(path, mode) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as nanoGPT's ({error}): {REMEDY}") from None


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
