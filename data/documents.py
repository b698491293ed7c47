"""Write a data set of any size: documents are read, tokenized in parallel and written as they stream.

An end-of-text token ends each document. A document's hash decides its split, so that copies stay together.
`.prepare.json` records how much is safely on disk: after a kill the same command goes on from there, and its
files are the same to the byte.
"""

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from common.devices import count_cpus
from common.errors import UserError
from common.files import naming, put_in_place, read_json, refusing, write_whole
from data.dataset import SPLITS, TextBytes
from data.sources import SEPARATOR, DocumentBatch, Files, Hub, Position, extract_text
from data.spans import count_bytes
from data.tokenizer import Tokenizer, end_of_text, from_json
from data.writer import token_dtype, write_meta

GROUP = 16  # batches, of about a megabyte each, written together


@dataclass
class Progress:
    """The progress of a command, as `.prepare.json` holds it."""

    command: list[Any]  # what decides the tokens
    bytes: dict[str, TextBytes]  # of each split's text so far
    position: Position = None  # of the next document in the source
    documents: int = 0  # read so far
    skipped: int = 0
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))  # in bytes


def write_documents(
    folder: Path,
    source: Files | Hub,
    tokenizer: Tokenizer,
    val_fraction: float,
    limit: int | None = None,
    num_proc: int | None = None,
) -> None:
    """Write the source's documents, or the first `limit` of them, in `folder`. Raises UserError.

    `num_proc` processes tokenize (None: one per core). Corrupt, empty and refused documents are skipped.
    """
    if end_of_text(tokenizer.description) is None:
        raise UserError("the tokenizer has no end-of-text such as <|endoftext|>: give its folder, or another")
    described = hashlib.sha256(json.dumps(tokenizer.description).encode()).hexdigest()
    command = [source.fingerprint(), described, val_fraction, limit]
    path = folder / ".prepare.json"
    progress = load_progress(path, command)
    documents = take_documents(limit, progress.documents, source.batches(progress.position))
    settings = (tokenizer.description, val_fraction)
    write_tokens(path, progress, documents, num_proc or count_cpus(), settings)
    about = f"{progress.documents:,} documents, {progress.skipped:,} of them corrupt, empty or refused"
    if not all(progress.sizes.values()):
        for leftover in (*(temporary_path(folder, split) for split in SPLITS), path):
            leftover.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            folder.rmdir()
        raise UserError(
            f"{source}: {about}, leave none for training or for validation: give more documents (in .txt a "
            f"line of {SEPARATOR.decode()} ends one) or another --val_fraction"
        )
    counts = publish(folder, progress, tokenizer, str(source))
    path.unlink()
    print(f"{folder}: {about}, {counts['train']:,} train and {counts['val']:,} validation tokens")


def load_progress(path: Path, command: list[Any]) -> Progress:
    """Load the progress of a command that was stopped. Raises UserError for another's."""
    if not path.exists():
        return Progress(command, dict.fromkeys(SPLITS, TextBytes(0)))
    with refusing(f"{path}: damaged", "delete it to begin anew", ValueError):
        progress = read_json(path, Progress)
    if progress.command != command:
        what = f"{path}: of another command, or its source has changed"
        raise UserError(f"{what}: give that command to go on, or delete the file to begin anew")
    print(f"going on after {progress.documents:,} documents")
    return progress


def write_tokens(
    path: Path, progress: Progress, batches: Iterator[DocumentBatch], num_proc: int, settings: tuple
) -> None:
    """Tokenize documents with the settings of `start_worker`, write them, and save `progress` to `path`."""
    # A fork may hang, because the readers of documents have started threads.
    with naming(Path("/dev/shm")):  # Linux keeps the locks of the processes there
        pool = ProcessPoolExecutor(num_proc, multiprocessing.get_context("spawn"), start_worker, settings)
    try:
        with pool, tqdm(initial=progress.documents, unit=" documents", disable=None) as bar:
            for group, tokenized in begin_tokenizing(pool, batches):
                results = list(tokenized)
                for split, size in progress.sizes.items():
                    tokens = np.concatenate([ids[split] for ids, _, _ in results])
                    progress.sizes[split] = append(temporary_path(path.parent, split), size, tokens)
                    counted = [progress.bytes[split], *(counts[split] for _, counts, _ in results)]
                    progress.bytes[split] = add_bytes(counted)
                count = sum(len(batch.records) for batch in group)
                progress.documents += count
                progress.skipped += sum(skipped for _, _, skipped in results)
                progress.position = group[-1].position
                write_whole(path, json.dumps(asdict(progress)))
                bar.update(count)
    except BrokenProcessPool:
        why = "a process that tokenizes was killed, perhaps for want of memory"
        raise UserError(f"{why}: go on by the same command with fewer than --num_proc={num_proc}") from None


def take_documents(limit: int | None, done: int, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    """Yield batches until there are `limit` documents (None: all), the `done` ones included."""
    for batch in batches:
        if limit is not None and done >= limit:
            return
        yield batch if limit is None else batch._replace(records=batch.records[: limit - done])
        done += len(batch.records)


# By split, tokens and bytes; and how many documents are skipped.
Tokenized = tuple[dict[str, np.ndarray], dict[str, TextBytes], int]


def begin_tokenizing(
    pool: Executor, batches: Iterator[DocumentBatch]
) -> Iterator[tuple[list[DocumentBatch], Iterator[Tokenized]]]:
    """Yield groups of batches, each with its results to come. While one is tokenized, the next is read."""
    begun = None
    while group := list(itertools.islice(batches, GROUP)):
        before = begun
        begun = group, pool.map(tokenize_documents, group)
        if before:
            yield before
    if begun:
        yield begun


worker: tuple  # set by `start_worker`: tokenizer, its end-of-text, validation's part of the documents


def start_worker(description: dict, val_fraction: float) -> None:
    global worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that writes
    threading.Thread(target=end_with_parent, daemon=True).start()
    worker = from_json(description), end_of_text(description), val_fraction


def end_with_parent() -> None:
    """End this process with the one that writes, even if that is killed."""
    multiprocessing.parent_process().join()  # ty: ignore[missing-union-attribute]
    os._exit(1)


def tokenize_documents(batch: DocumentBatch) -> Tokenized:
    """Return the tokens of each split, with end-of-text after each document, and what Tokenized says."""
    tokenizer, eot, val_fraction = worker
    dtype = token_dtype(tokenizer.vocab_size)
    pieces, skipped = {split: [np.array([], dtype)] for split in SPLITS}, 0
    counted: dict[str, list[TextBytes]] = {split: [] for split in SPLITS}
    for record in batch.records:
        text = extract_text(record, batch.json_lines)
        if text is None:
            skipped += 1
            continue
        try:
            ids = tokenizer.encode(text, special=False, add_special_tokens=True)
        except UserError as error:
            print(f"note: a document is left out: {error}", file=sys.stderr)
            skipped += 1
            continue
        ids = ids if len(ids) and ids[-1] == eot else np.append(ids, eot)
        content = text.encode()
        split = "val" if in_validation(content, val_fraction) else "train"
        pieces[split].append(ids.astype(dtype))
        # Only the first document's first token is not predicted.
        counted[split].append(TextBytes(len(content)) if counted[split] else count_bytes(tokenizer, text))
    tokens = {split: np.concatenate(some) for split, some in pieces.items()}
    return tokens, {split: add_bytes(some) for split, some in counted.items()}, skipped


def add_bytes(counted: list[TextBytes]) -> TextBytes:
    """Add the bytes of texts, one after another."""
    first = next((each for each in counted if each.total), TextBytes(0))
    return first._replace(total=sum(each.total for each in counted))


def in_validation(document: bytes, val_fraction: float) -> bool:
    """Tell by a document's hash whether it is one of the `val_fraction` that validate."""
    digest = hashlib.blake2b(document, digest_size=8).digest()
    return int.from_bytes(digest, "big") < int(val_fraction * 2**64)


def temporary_path(folder: Path, split: str) -> Path:
    return folder / f".{split}.bin.tmp"


def append(path: Path, size: int, tokens: np.ndarray) -> int:
    """Cut a file to `size` bytes, append tokens, wait for the disk, and return the new size."""
    if not len(tokens):
        return size
    if size == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    with naming(path), open(path, "r+b" if size else "xb") as file:
        if file.seek(0, os.SEEK_END) < size:
            raise UserError(f"{path}: shorter than it was: delete .prepare.json there to begin anew")
        file.seek(size)
        file.truncate()
        file.write(tokens.data)
        file.flush()
        os.fsync(file.fileno())
    return size + tokens.nbytes


def publish(folder: Path, progress: Progress, tokenizer: Tokenizer, source: str) -> dict[str, int]:
    """Write meta.json and rename the files, in place of an earlier data set. Return the tokens of each split.

    It can be stopped and called again. train.bin is renamed last: it is the loader's sign that all is there.
    """
    counts, sha256 = {}, {}
    renames = {temporary_path(folder, split): folder / f"{split}.bin" for split in SPLITS}
    for temporary, path in renames.items():
        with open(temporary if temporary.exists() else path, "rb") as file:
            sha256[path.stem] = hashlib.file_digest(file, "sha256").hexdigest()
        counts[path.stem] = progress.sizes[path.stem] // token_dtype(tokenizer.vocab_size).itemsize
    write_meta(folder, tokenizer, source, counts=counts, sha256=sha256, bytes=progress.bytes)
    for temporary, path in reversed(renames.items()):
        if temporary.exists():
            put_in_place(temporary, path)
    return counts
