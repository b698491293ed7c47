"""The documents of a large data set, from files of your own or from the Hugging Face hub.

They come as they are stored: `extract_text` decodes them later, in the processes that tokenize.
"""

import codecs
import glob
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError
from common.files import decode_text, from_utf8, refusing

BATCH = 2**20  # bytes of documents in a batch, about, which take a third of a second to tokenize
ROWS = 256  # rows of Parquet in a batch
LONGEST = 2**23  # bytes of a document in a text file; a longer one, too long to encode, is cut at lines
SEPARATOR = b"<|endoftext|>"  # between documents in a text file, on a line of its own

Position = Any  # a JSON value
Records = Sequence[bytes | None]  # one per document: UTF-8 text, or a line of JSON; None: a null


class DocumentBatch(NamedTuple):
    """Holds documents in order."""

    records: Records
    json_lines: bool  # whether the records are lines of JSON
    position: Position  # of the next document


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub whose files are Parquet, with a column "text"."""

    path: str
    name: str | None = None  # of the configuration, such as "sample-10BT"
    revision: str | None = None

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"hub: {self.path}", self.name, self.revision)))

    def fingerprint(self) -> list:
        """Return JSON values that tell whether the documents are the same."""
        return [self.path, self.name, self.revision]

    def batches(self, position: Position = None) -> Iterator[DocumentBatch]:
        """Yield the documents from a batch's `position` on. Raises UserError when they cannot be read."""
        for records, after in _stream_parquet(str(self), position, **asdict(self)):
            yield DocumentBatch(records, False, after)


class Files:
    """The user's own files, by paths, folders or globs. Raises UserError for none, and for another kind."""

    def __init__(self, patterns: list[str], column: str = "text"):
        self.paths, self.column = [], column  # of Parquet files
        for pattern in patterns:
            if not pattern:  # which Path takes for the current folder
                raise UserError(f"--source={','.join(patterns)}: a name is missing beside a comma")
            if Path(pattern).is_dir():
                found = [str(path) for path in Path(pattern).rglob("*") if path.suffix.lower() in READERS]
            else:
                found = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)
            if not found:
                raise UserError(f"--source={pattern}: no such file, nor a folder with {', '.join(READERS)}")
            self.paths += sorted(found)
        for path in self.paths:
            if Path(path).suffix.lower() not in READERS:
                raise UserError(f"{path}: expected a file that ends in {', '.join(READERS)}, or a folder")

    def __str__(self) -> str:
        return " ".join(self.paths)

    def fingerprint(self) -> list:
        return [[str(Path(path).resolve()), Path(path).stat().st_size] for path in self.paths]

    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(Path(path).stat().st_size for path in self.paths)

    def single_text(self) -> str | None:
        """Return the text of a single .txt file with one document; None for other sources."""
        if len(self.paths) > 1 or Path(self.paths[0]).suffix.lower() != ".txt":
            return None
        with open(self.paths[0], encoding="latin-1") as file:  # reads any bytes, and any lines
            if any(line.strip() == SEPARATOR.decode() for line in file):
                return None
        return decode_text(Path(self.paths[0]).read_bytes(), self.paths[0])

    def batches(self, position: Position = None) -> Iterator[DocumentBatch]:
        first, start = position or (0, None)  # the number of the file to go on with, and the position in it
        for number, path in list(enumerate(self.paths))[first:]:
            suffix = Path(path).suffix.lower()
            named = {"column": self.column} if suffix == ".parquet" else {}
            json_lines = suffix == ".jsonl" or bool(named) and self.column != "text"
            for records, after in READERS[suffix](path, start, **named):
                yield DocumentBatch(records, json_lines, [number, after])
            start = None


def extract_text(record: bytes | None, json_lines: bool) -> str | None:
    """Return the text of a document, or None if it is empty or corrupt."""
    try:
        text: Any = from_utf8(record or b"")
        text = json.loads(text)["text"] if json_lines else text
        text.encode()  # raises for a lone surrogate
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return text if text.strip() else None


def _read_lines(path: str, start: int | None, separator: bytes = b"") -> Iterator[tuple[list[bytes], int]]:
    """Yield a file's lines in batches, each up to a `separator` if there is one. A note says: not UTF-8."""
    noted = False
    with open(path, "rb") as file:
        position = file.seek(start or 0)
        while lines := file.readlines(BATCH):
            size = 0
            if position == 0:
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            while separator not in (b"", lines[-1].strip()) and size < LONGEST and (line := file.readline()):
                lines.append(line)
                size += len(line)
            try:
                if not noted:
                    decode_text(b"".join(lines), path, position)
            except UserError as error:
                print(f"note: {error}; what is not UTF-8 is left out", file=sys.stderr)
                noted = True
            position = file.tell()
            yield lines, position


def _read_text_file(path: str, start: int | None) -> Iterator[tuple[Records, int]]:
    for lines, after in _read_lines(path, start, SEPARATOR):
        content = re.sub(rb"\r\n?", b"\n", b"".join(lines))
        documents = re.split(rb"(?m)^[ \t]*<\|endoftext\|>[ \t]*(?:\n|\Z)", content)
        yield documents if documents[-1] else documents[:-1], after


def _read_parquet_file(path: str, start: Position, column: str) -> Iterator[tuple[Records, Position]]:
    return _stream_parquet(path, start, column, path="parquet", data_files=[glob.escape(path)])


def _stream_parquet(
    source: str, start: Position, column: str = "text", **dataset: Any
) -> Iterator[tuple[Records, Position]]:
    """Yield a column of `datasets.load_dataset(**dataset)`: texts as bytes, all else as lines of JSON.

    An error names the `source`.
    """
    import datasets  # here, because it takes over a second

    datasets.logging.set_verbosity(logging.CRITICAL)  # because it raises its errors, too
    what = f'{source}: cannot be read as Parquet with a column "{column}"'
    # Any library down to the network may raise its own kind of error.
    with refusing(what, "the same command goes on from here", Exception):
        # With `batch_size`, because a whole row group may not fit in memory.
        stream = datasets.load_dataset(
            **dataset, split="train", streaming=True, columns=[column], batch_size=ROWS
        ).with_format("arrow")
        if start is not None:
            stream.load_state_dict(start)
        for table in stream.iter(batch_size=ROWS):
            rows = table[column]
            if column == "text":  # as bytes, for one that is not UTF-8 would fail its whole batch
                records = rows.cast("large_binary").to_pylist()
            else:
                records = [json.dumps({column: row}).encode() for row in rows.to_pylist()]
            yield records, stream.state_dict()


# Each yields batches of a file's records, and the position after each batch.
READERS: dict[str, Callable[..., Iterator]] = {
    ".jsonl": _read_lines,
    ".parquet": _read_parquet_file,
    ".txt": _read_text_file,
}
