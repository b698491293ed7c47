"""Prepare a data set from your own documents. The data sets in this folder that stream share this command.

    python data/prepare.py --source=mine.txt --to=data/my_text      then: python train.py config/my_text.py
    python data/prepare.py --source=books,'web/*.parquet' --to=data/library --tokenizer=cl100k_base

A .jsonl file has a JSON object with "text" on each line, a .parquet file a column "text". A .txt file is one
document, or several with a line of "<|endoftext|>" between them; the last tenth of a single document
validates. Of a folder all such files are read. Conversations: data/conversations.py.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.command_line import Count, Name, given, refuse_unused
from common.errors import UserError, command
from common.files import decode_text
from data.conversations import Renderer, write_conversations
from data.documents import write_documents
from data.sources import Files, Hub
from data.writer import load_tokenizer, write_text

LARGE = 100e6  # bytes of a source of which nanoGPT's part for OpenWebText, 0.0005, is enough to validate
Part = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class PrepareOptions:
    """Prepare a data set from documents."""

    source: Name | None = None  # files, folders or globs, with commas between them; None: the hub's documents
    to: Name | None = None  # folder of the data set; None: the script's own
    tokenizer: Name = "gpt2"  # tiktoken's name for it, or a tokenizer.json
    limit: Count | None = None  # only the first so many documents
    num_proc: Count | None = None  # processes that tokenize; None: one for each core
    val_fraction: Part | None = None  # of the documents; None: 0.0005, or 0.1 of less than 100 MB
    chat: bool = False  # the documents are conversations (data/conversations.py)
    block_size: Count = 256  # for conversations, which are packed into rows of so many tokens and one
    template: Name | None = None  # a file with their chat template; None: the tokenizer's own


def prepare(argv: list[str], hub: Hub | None = None, **defaults: Any) -> None:
    """Run a command, by default on the documents of `hub`, which has other defaults. Raises UserError."""
    values = given(argv, PrepareOptions)
    options = PrepareOptions(**defaults | values)
    unused, how = (("num_proc",), "with") if options.chat else (("block_size", "template"), "without")
    refuse_unused(values, unused, f" is not used {how} --chat=True")
    column = "messages" if options.chat else "text"
    source = Files(options.source.split(","), column) if options.source else hub
    if options.to is None or source is None:
        raise UserError("--source=<files> and --to=<folder> are needed; see --help")
    tokenizer, folder = load_tokenizer(options.tokenizer), Path(options.to)
    if (folder / "tokenizer.json").exists():
        raise UserError(f"--to={folder}: this folder holds a tokenizer: give the data set another")
    small = isinstance(source, Files) and source.size() < LARGE
    limits = (options.val_fraction or (0.1 if small else 0.0005), options.limit)
    if isinstance(source, Files) and not (options.chat or options.val_fraction or options.limit):
        if (text := source.single_text()) is not None:
            return write_text(folder, text, tokenizer, str(source))
    if not options.chat:
        return write_documents(folder, source, tokenizer, *limits, options.num_proc)
    if not isinstance(source, Files):
        raise UserError("--chat=True needs --source=<.jsonl or .parquet files>")
    path = options.template
    template = None if path is None else decode_text(Path(path).read_bytes(), path)
    write_conversations(folder, source, Renderer(tokenizer, template), options.block_size, *limits)


if __name__ == "__main__":
    command(prepare)
