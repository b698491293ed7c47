"""Prepare the source of Python's standard library, which needs no download, with one token per character.

    python data/python_char/prepare.py [--source=<folder>]

The text is the top-level *.py of the standard library (or of <folder>), in the order of their names, with
four spaces for each tab, and only printable ASCII and newlines: 96 symbols. The first 90% are for training.
CPython 3.11.7 on Linux has 4,698,190 characters, later versions a little less.
"""

import platform
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.command_line import Name, given
from common.errors import command
from data.dataset import dataset_dir
from data.tokenizer import CharTokenizer
from data.writer import write_text

SYMBOLS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


@dataclass(frozen=True)
class PythonOptions:
    """Prepare the source of Python's standard library, with one token per character."""

    source: Name | None = None  # folder of another Python's library; None: of this one


def prepare(folder: Path, source: str | None = None) -> None:
    library = Path(source or sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"), key=lambda path: path.name)
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    text = text.replace("\t", "    ")
    kept = re.sub(r"[^\n -~]", "", text)
    whose = source or f"Python {platform.python_version()}'s standard library"
    about = f"{len(files)} top-level *.py of {whose}"
    print(f"{about}, without {len(text) - len(kept):,} characters that are not printable ASCII")
    write_text(folder, kept, CharTokenizer(SYMBOLS), about)


def main(argv: list[str]) -> None:
    prepare(dataset_dir("python_char"), **given(argv, PythonOptions))


if __name__ == "__main__":
    command(main)
