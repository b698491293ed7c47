"""Write a data set of any size: documents are read, tokenized in parallel, split and written as they stream.

An end-of-text token follows each document. A document's hash decides its split, so that its copies stay
together, and stay where they are when others are added. `.prepare.json` records how much is safely on disk:
after a kill the same command goes on from there, and its files are the same to the byte.
"""

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from config.command_line import UserError
from config.files import is_plain_name, read_json, write_whole
from data.meta import SPLITS
from data.sources import SEPARATOR, DocumentBatch, Files, Hub, Position, extract_text
from data.tokenizer import Tokenizer, end_of_text, from_json
from data.writer import ADVICE, append, describe_shards, publish, token_dtype

SAVE_EVERY = 16  # batches, of about a megabyte each, that are written together


@dataclass
class Progress:
    """The progress of a command, as `.prepare.json` holds it."""

    command: dict[str, Any]  # the inputs that decide the tokens: only the same command may go on
    position: Position = None  # of the next document in the source
    documents: int = 0  # number read so far, including those skipped
    corrupt: int = 0
    empty: int = 0
    sizes: dict[str, list[int]] = field(default_factory=lambda: {split: [] for split in SPLITS})  # in bytes
    shards: dict[str, list[dict]] | None = None  # as in meta.json, once only renaming is left

    def save(self, path: Path) -> None:
        values = asdict(self)
        write_whole(path, json.dumps({"progress": values, "sha256": digest(values)}), ADVICE)

    @property
    def skipped(self) -> str:
        return f"{self.corrupt:,} corrupt and {self.empty:,} empty"


def write_documents(
    folder: Path,
    source: Files | Hub,
    tokenizer: Tokenizer,
    val_fraction: float,
    limit: int | None = None,
    num_proc: int | None = None,
) -> None:
    """Write the source's documents, or the first `limit` of them, as a data set in `folder`. Print a summary.

    `num_proc` processes tokenize (None: one per core). Corrupt and empty documents are skipped. Raises
    UserError when the source cannot be read, a split is empty, the tokenizer has no end-of-text token, or the
    folder cannot be written or holds the beginning of another data set.
    """
    if end_of_text(tokenizer.to_json()) is None:
        raise UserError("the tokenizer has no end-of-text token, such as <|endoftext|>: choose another")
    command = {
        "source": source.fingerprint(),
        "tokenizer": digest(tokenizer.to_json()),
        "val_fraction": val_fraction,
        "limit": limit,
    }
    path = folder / ".prepare.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        progress = load_progress(path, command)
        if progress.shards is None:
            write_tokens(path, progress, source, tokenizer, num_proc or os.cpu_count() or 1)
            check_splits(path, progress, source)
            dtype = token_dtype(tokenizer.vocab_size)
            progress.shards = {
                split: describe_shards(folder, split, sizes, dtype) for split, sizes in progress.sizes.items()
            }
            progress.save(path)
        publish(folder, progress.shards, tokenizer, str(source))
        path.unlink()
    except OSError as error:
        raise UserError(f"{folder}: cannot write the data set ({error}): {ADVICE}") from None
    train, val = (sum(shard["tokens"] for shard in progress.shards[split]) for split in SPLITS)
    print(f"{folder}: {progress.documents:,} documents, {train:,} train and {val:,} validation tokens")
    if progress.corrupt or progress.empty:
        print(f"skipped of these: {progress.skipped}")


def load_progress(path: Path, command: dict[str, Any]) -> Progress:
    """Load the progress of a command that was stopped. Raises UserError for another's, or a damaged file."""
    if not path.exists():
        return Progress(command)
    try:
        stored = read_json(path)
        if stored["sha256"] != digest(stored["progress"]):
            raise ValueError("its sha256 is not that of its content")
        progress = Progress(**stored["progress"])
        shards = (progress.shards or {}).values()
        if not all(is_plain_name(shard["file"]) for split in shards for shard in split):
            raise ValueError("a file of the data set is outside of its folder")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error}): delete it to begin anew") from None
    if progress.command != command:
        raise UserError(
            f"{path.parent} holds the beginning of another command's data set, or its source has changed: "
            f"give that command to go on with it, or delete {path} to begin anew"
        )
    print(f"going on after {progress.documents:,} documents")
    return progress


def digest(values: Any) -> str:
    """Return the sha256 of JSON values."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def write_tokens(
    path: Path, progress: Progress, source: Files | Hub, tokenizer: Tokenizer, num_proc: int
) -> None:
    """Write the tokens of all documents after `progress`. Update it, and save it to `path` on the way."""
    limit = progress.command["limit"]
    batches = take_documents(limit, progress.documents, source.batches(progress.position))
    worker_arguments = (tokenizer.to_json(), progress.command["val_fraction"])
    tokenized = tokenize_in_parallel(batches, num_proc, worker_arguments)
    started, count = time.perf_counter(), 0
    with tqdm(total=limit, initial=progress.documents, unit=" documents", disable=None) as bar:
        while results := list(itertools.islice(tokenized, SAVE_EVERY)):
            for split, sizes in progress.sizes.items():
                tokens = np.concatenate([result.tokens[split] for result in results])
                append(path.parent, split, sizes, tokens)
                count += len(tokens)
            for result in results:
                progress.documents += result.documents
                progress.corrupt += result.corrupt
                progress.empty += result.empty
                bar.update(result.documents)
            progress.position = results[-1].position
            progress.save(path)
    seconds = time.perf_counter() - started
    print(f"{count:,} tokens in {seconds:.1f} s: {count / seconds / 1e6:.2f} million a second")


def take_documents(limit: int | None, done: int, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    """Yield batches until there are `limit` documents (None: all), the `done` ones included."""
    for batch in batches:
        if limit is not None and done >= limit:
            return
        yield batch if limit is None else batch._replace(records=batch.records[: limit - done])
        done += len(batch.records)


class TokenizedBatch(NamedTuple):
    """The tokens of a batch of documents."""

    tokens: dict[str, np.ndarray]  # by split, in the type in which they are stored
    documents: int
    corrupt: int  # of the documents; these and the empty ones are skipped
    empty: int
    position: Position  # of the document after them


def tokenize_in_parallel(
    batches: Iterator[DocumentBatch], num_proc: int, worker_arguments: tuple[dict, float]
) -> Iterator[TokenizedBatch]:
    """Yield the batches in order, tokenized. `worker_arguments` are those of `start_worker`.

    At most 2 num_proc + 1 batches are pending at a time. Raises UserError when a process was killed.
    """
    # Processes are spawned, because a fork of one with threads, as the readers have them, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_proc, context, start_worker, worker_arguments) as pool:
        pending = deque()
        try:
            for batch in batches:
                pending.append(pool.submit(tokenize_documents, batch))
                if len(pending) > 2 * num_proc:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a process that tokenizes was killed, perhaps for want of memory: give the same command "
                f"to go on, with fewer than --num_proc={num_proc}"
            ) from None


worker: tuple  # set by `start_worker`: tokenizer, its end-of-text, bound of validation's digests


def start_worker(description: dict, val_fraction: float) -> None:
    """Prepare a process for `tokenize_documents`."""
    global worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that writes, which ends this one
    threading.Thread(target=end_with_parent, daemon=True).start()
    worker = from_json(description), end_of_text(description), int(val_fraction * 2**64)


def end_with_parent() -> None:
    """End this process with the one that writes, which may be killed; it would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a worker calls this"
    parent.join()
    os._exit(1)


def tokenize_documents(batch: DocumentBatch) -> TokenizedBatch:
    """Tokenize documents, with end-of-text after each."""
    tokenizer, eot, val_below = worker
    dtype = token_dtype(tokenizer.vocab_size)
    pieces, corrupt, empty = {split: [np.array([], dtype)] for split in SPLITS}, 0, 0
    for record in batch.records:
        try:
            text = extract_text(record, batch.json_lines)
        except (ValueError, RecursionError):  # JSON with thousands of brackets raises the second
            corrupt += 1
            continue
        if not text.strip():
            empty += 1
            continue
        place = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        ids = tokenizer.encode(text, special=False)
        pieces["val" if place < val_below else "train"].append(np.append(ids, eot).astype(dtype))
    tokens = {split: np.concatenate(some) for split, some in pieces.items()}
    return TokenizedBatch(tokens, len(batch.records), corrupt, empty, batch.position)


def check_splits(path: Path, progress: Progress, source: Files | Hub) -> None:
    """Raise UserError when a split has no documents, and delete the files and the progress."""
    missing = [split for split in SPLITS if not progress.sizes[split]]
    if not missing:
        return
    for leftover in (*path.parent.glob(".*_?????.bin.tmp"), path):
        leftover.unlink(missing_ok=True)
    advice = "give more, or another --val_fraction"
    if progress.documents - progress.corrupt - progress.empty < 2:  # whatever the fraction
        advice = (
            f'give at least two: in .txt there is a line of "{SEPARATOR.decode()}" between them, in '
            '.jsonl each is a line with a string under "text", and all are UTF-8'
        )
    raise UserError(
        f"{source}: {progress.documents} documents, of which {progress.skipped}, "
        f"leave none for {missing[0]}: {advice}"
    )
