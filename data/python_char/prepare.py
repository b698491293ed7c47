"""Prepare the source of Python's standard library, which needs no download, with one token per character.

    python data/python_char/prepare.py [--source=<folder>]

The text is the top-level *.py of the standard library (or of <folder>), in the order of their file names.
Each tab becomes four spaces. Then all but printable ASCII and newlines is dropped, which leaves 96 symbols
with every Python version. The first 90% of the characters are for training, the rest for validation.

The same installation of Python always gives the same text. CPython 3.11.7 on Linux had 168 files with
4,698,190 characters (90 others were dropped): 4,228,371 for training and 469,819 for validation. Python 3.12
and 3.13 have a little less.
"""

import platform
import re
import sys
import sysconfig
from pathlib import Path

# When this runs as a script, Python looks for imports in this folder only;
# `config` and `data` are two levels up.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

from config.command_line import ScriptParser, UserError, command
from data.tokenizer import CharTokenizer
from data.writer import write_dataset

SMALL = True  # train.py prepares it by itself: it takes a second and no network
SYMBOLS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


def prepare(folder: Path, source: str | None = None) -> None:
    """Write the data set into `folder`, from the *.py in the folder `source` or the standard library."""
    library = Path(source or sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"), key=lambda path: path.name)
    if not files:
        raise UserError(
            f"{library}: no *.py files there: give a folder of Python source with --source=<folder>"
        )
    try:
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    except OSError as error:
        raise UserError(
            f"{error.filename}: cannot be read ({error.strerror}): check its permissions"
        ) from None
    text = "".join(texts).replace("\t", "    ")
    kept = re.sub(r"[^\n -~]", "", text)

    tokenizer = CharTokenizer(SYMBOLS)
    ids = tokenizer.encode(kept)
    cut = int(0.9 * len(ids))
    described = source or f"the Python {platform.python_version()} standard library"
    write_dataset(folder, ids[:cut], ids[cut:], tokenizer, f"{len(files)} top-level *.py of {described}")
    print(
        f"{folder}: {len(files)} files of {library}, "
        f"{len(kept):,} characters ({len(text) - len(kept):,} dropped), "
        f"{tokenizer.vocab_size} symbols, {cut:,} train and {len(ids) - cut:,} validation tokens"
    )


def main(argv: list[str]) -> None:
    parser = ScriptParser(__doc__)
    parser.add_argument("--source", metavar="FOLDER", help="a folder of *.py (default: the standard library)")
    prepare(Path(__file__).resolve().parent, parser.parse(argv).source)


if __name__ == "__main__":
    command(main)
