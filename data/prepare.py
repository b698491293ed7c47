"""Prepare a data set from your own documents. The data sets in this folder that stream share this command.

    python data/prepare.py --source=mine.jsonl --to=data/mine       then: python train.py --dataset=mine
    python data/prepare.py --source 'books/*.txt' 'web/*.parquet' --to=data/mine --tokenizer=cl100k_base

A .jsonl file has a JSON object with "text" on each line, a .parquet file a column "text". A .txt file is one
document, or several with a line of "<|endoftext|>" between them.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from config.command_line import ScriptParser, UserError, command
from data.documents import write_documents
from data.sources import Files, Hub
from data.writer import load_tokenizer

VAL_FRACTION = 0.0005  # as nanoGPT has it for OpenWebText


def prepare(
    argv: list[str],
    about: str = __doc__,
    folder: Path | None = None,
    hub: Hub | None = None,
    val_fraction: float = VAL_FRACTION,
) -> None:
    """Run a command, by default on the documents of `hub` and into `folder`."""
    given = parse(argv, about, folder, hub, val_fraction)
    source = Files(given.source) if given.source else hub
    assert source is not None, "the parser asks for --source where there is no hub"
    tokenizer = load_tokenizer(given.tokenizer)
    write_documents(given.to, source, tokenizer, given.val_fraction, given.limit, given.num_proc)


def parse(
    argv: list[str], about: str, folder: Path | None, hub: Hub | None, val_fraction: float = VAL_FRACTION
) -> argparse.Namespace:
    """Read the command's options. Raises UserError."""
    parser = ScriptParser(about)
    add = parser.add_argument
    add("--source", nargs="+", metavar="FILE", required=not hub, help="files or globs (default: the hub's)")
    add("--to", type=Path, metavar="FOLDER", required=not folder, default=folder, help="where to write")
    add("--tokenizer", default="gpt2", help="tiktoken's name for it, or a tokenizer.json (default: gpt2)")
    add("--limit", type=int, metavar="N", help="only the first N documents")
    add("--num_proc", type=int, metavar="N", help="processes that tokenize (default: one for each core)")
    add("--val_fraction", type=float, default=val_fraction, help="share of documents for validation")
    given = parser.parse(argv)
    for name in ("limit", "num_proc"):
        if (value := getattr(given, name)) is not None and value < 1:
            raise UserError(f"--{name}={value}: expected 1 or more")
    if not 0 < given.val_fraction < 1:
        raise UserError(f"--val_fraction={given.val_fraction}: expected a number between 0 and 1")
    return given


if __name__ == "__main__":
    command(prepare)
