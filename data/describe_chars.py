"""Describe character data that nanoGPT prepared: write the meta.json that train.py reads, beside train.bin.

    python data/describe_chars.py --dataset=mine                    a folder below data/, or a path
    python data/describe_chars.py --dataset=mine --source=mine.txt  if its text is not <folder>/input.txt

nanoGPT keeps its characters in meta.pkl. A pickle can run code, so it is not read: the ids are those of the
text's characters, sorted. Every token is compared with the text.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from config.command_line import ScriptParser, UserError, command
from config.files import open_file
from data.dataset import SPLITS, dataset_dir
from data.tokenizer import CharTokenizer
from data.writer import describe_splits, write_meta

REMEDY = "give the text that nanoGPT's prepare.py read, with --source=<path>"


def describe(folder: Path, source: Path) -> None:
    """Write meta.json beside train.bin and val.bin, if these are the text `source`. Raises UserError."""
    try:
        text = source.read_text(encoding="utf-8")  # as nanoGPT reads it: every end of a line becomes \n
        tokenizer = CharTokenizer("".join(sorted(set(text))))
        splits = {}
        for split in SPLITS:
            with open_file(folder / f"{split}.bin") as file:
                splits[split] = np.frombuffer(file.read(), "<u2")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: cannot be read as nanoGPT's ({error}): {REMEDY}") from None
    found, expected = np.concatenate(list(splits.values())), tokenizer.encode(text)
    if not np.array_equal(found, expected):
        raise UserError(
            f"{folder}: the {len(found):,} tokens of train.bin and val.bin are not the {len(text):,} "
            f"characters of {source}: {REMEDY}"
        )
    write_meta(folder, tokenizer, str(source), **describe_splits(splits))
    counts = f"{len(splits['train']):,} train and {len(splits['val']):,} validation tokens"
    print(f"{folder / 'meta.json'}: {tokenizer.vocab_size} symbols, {counts}")


def main(argv: list[str]) -> None:
    parser = ScriptParser(__doc__)
    parser.add_argument("--dataset", required=True, metavar="FOLDER", help="where train.bin and val.bin are")
    parser.add_argument("--source", type=Path, metavar="PATH", help="the text (default: <folder>/input.txt)")
    given = parser.parse(argv)
    folder = dataset_dir(given.dataset)
    describe(folder, given.source or folder / "input.txt")


if __name__ == "__main__":
    command(main)
