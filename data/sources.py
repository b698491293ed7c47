"""Where the documents of a large data set come from: files of your own, or the Hugging Face hub.

A source yields its documents in batches, each with the position behind it, from which a source made anew goes
on: so that a run that was killed need not read everything again, and memory holds a few batches only.
Documents stay as they are stored; `text_of` reads one, in whichever process has the time for it.
"""

import glob
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from config.command_line import UserError

BATCH = 2**20  # bytes of documents in a batch, about: a third of a second of tokenizing
ROWS = 256  # of Parquet in a batch
LONGEST = 2**24  # bytes of a document in a text file; a longer one is cut at a line's end
SEPARATOR = b"<|endoftext|>"  # between documents in a text file, on a line of its own

Position = Any  # a JSON value


class Batch(NamedTuple):
    """Some documents, in order, and where those behind them begin."""

    records: list[bytes | None]  # a document each: UTF-8, or a line of JSON; None: a null
    json_lines: bool
    position: Position


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub whose files are Parquet, with a column "text"."""

    repository: str
    name: str | None = None  # of a part of it
    revision: str | None = None

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"hub: {self.repository}", self.name, self.revision)))

    def fingerprint(self) -> list:
        """What has to be the same for a position to mean the same."""
        return [self.repository, self.name, self.revision]

    def batches(self, position: Position = None) -> Iterator[Batch]:
        """The documents from `position` on. Raises UserError when the hub cannot be read."""
        where = {"path": self.repository, "name": self.name, "revision": self.revision}
        failed, advice = f"cannot read {self.repository} from the hub", "the same command goes on from here"
        for records, behind in _parquet(where, position, failed, advice):
            yield Batch(records, False, behind)


class Files:
    """Files of one's own, given as paths or globs: .jsonl, .parquet (both with "text"), and .txt.

    A text file is one document, or several between lines of "<|endoftext|>". Raises UserError when a pattern
    matches no file, or a file is of another kind.
    """

    def __init__(self, patterns: list[str]):
        self.paths = []
        for pattern in patterns:
            found = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
            if not found:
                raise UserError(f"--source={pattern}: no such file")
            self.paths += found
        for path in self.paths:
            if Path(path).suffix not in READERS:
                raise UserError(f"{path}: expected a file that ends in {', '.join(READERS)}")

    def __str__(self) -> str:
        return " ".join(self.paths)

    def fingerprint(self) -> list:
        """What has to be the same for a position to mean the same."""
        return [[str(Path(path).resolve()), Path(path).stat().st_size] for path in self.paths]

    def batches(self, position: Position = None) -> Iterator[Batch]:
        """The documents from `position` on. Raises UserError when a file cannot be read."""
        first, start = position or (0, None)
        for number, path in list(enumerate(self.paths))[first:]:
            suffix = Path(path).suffix
            try:
                for records, behind in READERS[suffix](path, start):
                    yield Batch(records, suffix == ".jsonl", [number, behind])
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror}): check it") from None
            start = None


def text_of(record: bytes | None, json_lines: bool) -> str:
    """The text of a document. Raises ValueError when there is none, or it is not UTF-8."""
    if record is None:
        raise ValueError("null")
    if not json_lines or not record.strip():
        return record.decode("utf-8")
    value = json.loads(record)
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ValueError('no string under "text"')
    value["text"].encode("utf-8")  # JSON can spell half a character, which no tokenizer takes
    return value["text"]


def _json_lines(path: str, start: int | None) -> Iterator[tuple[list[bytes], int]]:
    with open(path, "rb") as file:
        file.seek(start or 0)
        while lines := file.readlines(BATCH):
            yield lines, file.tell()


def _texts(path: str, start: int | None) -> Iterator[tuple[list[bytes], int]]:
    documents, size = [], 0
    for document, position in _text_documents(path, start or 0):
        documents.append(document)
        size += len(document)
        if size >= BATCH:
            yield documents, position
            documents, size = [], 0
    if documents:
        yield documents, position


def _text_documents(path: str, position: int) -> Iterator[tuple[bytes, int]]:
    lines, size = [], 0
    with open(path, "rb") as file:
        file.seek(position)
        for line in file:
            position += len(line)
            separates = line.strip() == SEPARATOR
            if not separates:
                lines.append(line)
                size += len(line)
            if separates or size >= LONGEST:
                yield b"".join(lines), position
                lines, size = [], 0
    if lines:
        yield b"".join(lines), position


def _parquet_file(path: str, start: Position) -> Iterator[tuple[list[bytes | None], Position]]:
    where = {"path": "parquet", "data_files": [glob.escape(path)]}
    return _parquet(where, start, f'{path}: cannot be read as Parquet with a column "text"', "check it")


def _parquet(
    where: dict[str, Any], start: Position, failed: str, advice: str
) -> Iterator[tuple[list[bytes | None], Position]]:
    """The column "text" of what `datasets.load_dataset(**where)` finds, as it streams."""
    try:
        import datasets  # here, because it takes over a second to import, and text needs none of it
        import pyarrow
    except ImportError:
        raise UserError("Parquet and the Hugging Face hub need datasets: pip install datasets") from None
    datasets.logging.set_verbosity(logging.CRITICAL)  # it reports in many lines what is raised anyway
    try:
        # `batch_size` is how much is decoded at a time; a whole row group may be more than fits in memory.
        stream = datasets.load_dataset(
            **where, split="train", streaming=True, columns=["text"], batch_size=ROWS
        ).with_format("arrow")
        if start is not None:
            stream.load_state_dict(start)
        for table in stream.iter(batch_size=ROWS):
            column = table["text"].cast(pyarrow.large_binary())  # as text, one that is not UTF-8 fails all
            yield column.to_pylist(), stream.state_dict()
    except Exception as error:  # of any of the libraries between here and the network
        reason = (str(error).strip() or type(error).__name__).split("\n")[0][:200]
        raise UserError(f"{failed} ({reason}): {advice}") from None


READERS: dict[str, Callable[[str, Position], Iterator]] = {
    ".jsonl": _json_lines,
    ".parquet": _parquet_file,
    ".txt": _texts,
}
