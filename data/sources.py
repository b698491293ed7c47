"""The documents of a large data set, from files of your own or from the Hugging Face hub.

A source yields its documents in batches, so that memory holds only a few. Each batch has the position behind
it, from which a new source goes on: after a kill, nothing need be read again. Documents stay as they are
stored; `extract_text` decodes one later, in a process that tokenizes.
"""

import glob
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from config.command_line import UserError

BATCH = 2**20  # about as many bytes of documents are in a batch: a third of a second of tokenizing
ROWS = 256  # rows of Parquet in a batch
LONGEST = 2**24  # bytes of a document in a text file; a longer one is split at a line's end
SEPARATOR = b"<|endoftext|>"  # between documents in a text file, on a line of its own

Position = Any  # a JSON value


class DocumentBatch(NamedTuple):
    """Documents in order, and the position of the document behind them."""

    records: list[bytes | None]  # one per document: UTF-8 text, or a line of JSON; None: a null
    json_lines: bool  # whether the records are lines of JSON
    position: Position


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub whose files are Parquet, with a column "text"."""

    repository: str
    name: str | None = None  # of the configuration, such as "sample-10BT"
    revision: str | None = None

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"hub: {self.repository}", self.name, self.revision)))

    def fingerprint(self) -> list:
        """Return JSON values that identify the documents: positions hold as long as these are the same."""
        return [self.repository, self.name, self.revision]

    def batches(self, position: Position = None) -> Iterator[DocumentBatch]:
        """Yield the documents from `position` on. Raises UserError when the hub cannot be read."""
        dataset = {"path": self.repository, "name": self.name, "revision": self.revision}
        problem, advice = f"cannot read {self.repository} from the hub", "the same command goes on from here"
        for records, behind in _stream_parquet(dataset, position, problem, advice):
            yield DocumentBatch(records, False, behind)


class Files:
    """The user's own files, given as paths or globs: .jsonl and .parquet (both with "text"), and .txt.

    A text file is one document, or several with a line of "<|endoftext|>" between them. Raises UserError when
    a pattern matches no file, or a file is of another kind.
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
        """Return JSON values that identify the documents: positions hold as long as these are the same."""
        return [[str(Path(path).resolve()), Path(path).stat().st_size] for path in self.paths]

    def batches(self, position: Position = None) -> Iterator[DocumentBatch]:
        """Yield the documents from `position` on. Raises UserError when a file cannot be read."""
        begun, start = position or (0, None)  # the number of the file to go on with, and the position in it
        for number, path in list(enumerate(self.paths))[begun:]:
            suffix = Path(path).suffix
            try:
                for records, behind in READERS[suffix](path, start):
                    yield DocumentBatch(records, suffix == ".jsonl", [number, behind])
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror}): check it") from None
            start = None


def extract_text(record: bytes | None, json_lines: bool) -> str:
    """Return the text of a document. Raises ValueError when it has none, or it is not UTF-8."""
    if record is None:
        raise ValueError("null")
    if not json_lines or not record.strip():
        return record.decode("utf-8")
    value = json.loads(record)
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ValueError('no string under "text"')
    value["text"].encode("utf-8")  # raises for a lone surrogate: JSON can spell it, no tokenizer takes it
    return value["text"]


def _read_json_lines(path: str, start: int | None) -> Iterator[tuple[list[bytes], int]]:
    with open(path, "rb") as file:
        file.seek(start or 0)
        while lines := file.readlines(BATCH):
            yield lines, file.tell()


def _read_text_file(path: str, start: int | None) -> Iterator[tuple[list[bytes], int]]:
    documents, size = [], 0
    for document, position in _split_text_file(path, start or 0):
        documents.append(document)
        size += len(document)
        if size >= BATCH:
            yield documents, position
            documents, size = [], 0
    if documents:
        yield documents, position


def _split_text_file(path: str, position: int) -> Iterator[tuple[bytes, int]]:
    """Yield each document of a text file from `position` on, with the position behind it."""
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


def _read_parquet_file(path: str, start: Position) -> Iterator[tuple[list[bytes | None], Position]]:
    dataset = {"path": "parquet", "data_files": [glob.escape(path)]}
    problem = f'{path}: cannot be read as Parquet with a column "text"'
    return _stream_parquet(dataset, start, problem, "check it")


def _stream_parquet(
    dataset: dict[str, Any], start: Position, problem: str, advice: str
) -> Iterator[tuple[list[bytes | None], Position]]:
    """Yield the column "text" of `datasets.load_dataset(**dataset)` in batches, each with its position.

    Raises UserError, worded with `problem` and `advice`, when it cannot be read.
    """
    try:
        import datasets  # here, because it takes over a second to import, and text needs none of it
        import pyarrow
    except ImportError:
        raise UserError("Parquet and the Hugging Face hub need datasets: pip install datasets") from None
    datasets.logging.set_verbosity(logging.CRITICAL)  # it logs in many lines an error that is raised anyway
    try:
        # `batch_size` limits how many rows are decoded at once: a whole row group may not fit in memory.
        stream = datasets.load_dataset(
            **dataset, split="train", streaming=True, columns=["text"], batch_size=ROWS
        ).with_format("arrow")
        if start is not None:
            stream.load_state_dict(start)
        for table in stream.iter(batch_size=ROWS):
            # As bytes, because as text a single document that is not UTF-8 would fail the whole batch.
            column = table["text"].cast(pyarrow.large_binary())
            yield column.to_pylist(), stream.state_dict()
    except Exception as error:  # any library between here and the network may raise its own kind
        reason = (str(error).strip() or type(error).__name__).split("\n")[0][:200]
        raise UserError(f"{problem} ({reason}): {advice}") from None


# Each reader yields batches of a file's records, with the position behind each batch.
READERS: dict[str, Callable[[str, Position], Iterator]] = {
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet_file,
    ".txt": _read_text_file,
}
