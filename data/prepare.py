"""Prepare a data set from your own documents. The data sets in this folder that stream share this command.

    python data/prepare.py --source=mine.jsonl --to=data/mine       then: python train.py --dataset=mine
    python data/prepare.py --source 'books/*.txt' 'web/*.parquet' --to=data/mine --tokenizer=cl100k_base

A .jsonl file has a JSON object with "text" on each line, a .parquet file a column "text". A .txt file is one
document, or several with a line of "<|endoftext|>" between them.
"""

import argparse
import sys
from pathlib import Path

# When this runs as a script, Python looks for imports in this folder only;
# `config` and `data` are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

from config.command_line import ScriptParser, UserError, command
from data.documents import write_documents
from data.sources import Files, Hub
from data.tokenizer import load_tokenizer

VAL_FRACTION = 0.0005  # as nanoGPT has it for OpenWebText


def main(argv: list[str]) -> None:
    prepare(argv, __doc__)


def prepare(
    argv: list[str],
    about: str,
    folder: Path | None = None,
    hub: Hub | None = None,
    val_fraction: float = VAL_FRACTION,
) -> None:
    """Run the command `argv` that prepares a data set from documents that stream.

    It writes the documents of `hub` to `folder`, unless `argv` names others. `about` is its text in `--help`.
    Raises UserError as `parse` and `write_documents` do.
    """
    arguments = parse(argv, about, folder, hub, val_fraction)
    source = Files(arguments.source) if arguments.source else hub
    assert source is not None, "the parser asks for --source where there is no hub"
    tokenizer = load_tokenizer(arguments.tokenizer)
    write_documents(
        arguments.to, source, tokenizer, arguments.val_fraction, arguments.limit, arguments.num_proc
    )


def parse(
    argv: list[str],
    about: str,
    folder: Path | None = None,
    hub: Hub | None = None,
    val_fraction: float = VAL_FRACTION,
) -> argparse.Namespace:
    """Read a command line that prepares documents. Raises UserError, also for a value out of range."""
    parser = ScriptParser(about)
    add = parser.add_argument
    add("--source", nargs="+", metavar="FILE", required=not hub, help="files or globs (default: the hub's)")
    add("--to", type=Path, metavar="FOLDER", required=not folder, default=folder, help="where to write")
    add("--tokenizer", default="gpt2", help="tiktoken's name for it, or a tokenizer.json (default: gpt2)")
    add("--limit", type=int, metavar="N", help="only the first N documents")
    add("--num_proc", type=int, metavar="N", help="processes that tokenize (default: one for each core)")
    add("--val_fraction", type=float, default=val_fraction, help="share of documents for validation")
    arguments = parser.parse(argv)
    for name in ("limit", "num_proc"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise UserError(f"--{name}={value}: expected 1 or more")
    if not 0 < arguments.val_fraction < 1:
        raise UserError(f"--val_fraction={arguments.val_fraction}: expected a number between 0 and 1")
    return arguments


if __name__ == "__main__":
    command(main)
