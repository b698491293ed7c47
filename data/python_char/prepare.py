"""Prepare the source of Python's standard library, which needs no download, with one token per character.

    python data/python_char/prepare.py

The text is the top-level *.py of the standard library, in the order of their names, with four spaces for each
tab, and only printable ASCII and newlines: 96 symbols. The first 90% are for training. CPython 3.11.7 on
Linux has 4,698,190 characters, later versions a little less.
"""

import platform
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.command_line import given
from common.errors import command
from data.dataset import dataset_dir
from data.tokenizer import CharTokenizer
from data.writer import write_text

SYMBOLS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


@dataclass(frozen=True)
class PythonOptions:
    program: ClassVar[str] = "data/python_char/prepare.py"
    purpose: ClassVar[str] = "Prepare the source of Python's standard library, with one token per character."


def prepare(folder: Path) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"), key=lambda path: path.name)
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    text = text.replace("\t", "    ")
    kept = re.sub(r"[^\n -~]", "", text)
    source = f"{len(files)} top-level *.py of Python {platform.python_version()}'s standard library"
    print(f"{source}, without {len(text) - len(kept):,} characters that are not printable ASCII")
    write_text(folder, kept, CharTokenizer(SYMBOLS), source)


def main(argv: list[str]) -> None:
    given(argv, PythonOptions)  # --help, and refuses what it does not know
    prepare(dataset_dir("python_char"))


if __name__ == "__main__":
    command(main)
