"""From documents to a data set of any size: read, tokenized in parallel, split and written as they stream.

Each document is followed by the tokenizer's end-of-text token. A document's own hash says whether it is for
training or for validation: its copies stay together, and it stays where it is when more are added.

`.prepare.json` says from time to time how far the files of the data set are good. After a kill the same
command goes on from there, and what it writes is the same to the byte.
"""

import hashlib
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
from data.shards import ShardWriter, publish
from data.sources import Batch, Files, Hub, Position, text_of
from data.tokenizer import JsonTokenizer, TiktokenTokenizer, end_of_text, from_json
from data.writer import description, token_dtype

SAVE_EVERY = 64  # batches, of about a megabyte, between two notes of how far the files are good
SPLITS = ("train", "val")


@dataclass
class Progress:
    """How far a run has come: what `.prepare.json` holds."""

    command: dict[str, Any]  # what decides the tokens: another command must not go on with them
    position: Position = None  # in the source
    documents: int = 0  # read so far, with those skipped
    skipped: dict[str, int] = field(default_factory=lambda: {"corrupt": 0, "empty": 0})
    splits: dict[str, dict] = field(default_factory=lambda: {split: {} for split in SPLITS})  # their writers'
    meta: dict | None = None  # for meta.json, when all is written and only the names are to be given

    def save(self, path: Path) -> None:
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(asdict(self)))
        os.replace(beside, path)


def write_documents(
    folder: Path,
    source: Files | Hub,
    tokenizer: TiktokenTokenizer | JsonTokenizer,
    val_fraction: float,
    limit: int | None = None,
    num_proc: int | None = None,
) -> None:
    """Write the data set of the source's documents, or of the first `limit`, into `folder`, and report it.

    `num_proc` processes tokenize (None: as many as there are cores) and change nothing but the time. Corrupt
    and empty documents are skipped and counted. Raises UserError when the source cannot be read, no document
    is left for a split, the tokenizer has no end-of-text token, the folder cannot be written, or it holds the
    beginning of another data set.
    """
    if end_of_text(tokenizer.to_json()) is None:
        raise UserError("the tokenizer has no end-of-text token, such as <|endoftext|>: choose another")
    command = {
        "source": source.fingerprint(),
        "tokenizer": hashlib.sha256(json.dumps(tokenizer.to_json()).encode()).hexdigest(),
        "val_fraction": val_fraction,
        "limit": limit,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state = folder / ".prepare.json"
        progress = resumed(state, command) or Progress(command)
        if progress.meta is None:
            shards = tokenize(folder, state, progress, source, tokenizer, num_proc or os.cpu_count() or 1)
            progress.meta = finished(folder, state, progress, shards, description(tokenizer, str(source)))
            progress.save(state)
        publish(folder, progress.meta)
        state.unlink()
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the data set ({error}): make room, and give the same command to go on"
        ) from None
    report(folder, progress)


def resumed(state: Path, command: dict[str, Any]) -> Progress | None:
    """How far the same command came before it was stopped; None if it was not."""
    if not state.exists():
        return None
    try:
        progress = Progress(**json.loads(state.read_text()))
    except (ValueError, TypeError):
        raise UserError(f"{state}: damaged: delete it to begin anew") from None
    if progress.command != command:
        raise UserError(
            f"{state.parent} holds the beginning of another command's data set, or its source has changed: "
            f"give that command to go on with it, or delete {state} to begin anew"
        )
    print(f"going on after {progress.documents:,} documents")
    return progress


def tokenize(
    folder: Path,
    state: Path,
    progress: Progress,
    source: Files | Hub,
    tokenizer: TiktokenTokenizer | JsonTokenizer,
    num_proc: int,
) -> dict[str, list[dict]]:
    """Write the tokens of all documents behind `progress`; what meta.json says of each split's files."""
    dtype = token_dtype(tokenizer.vocab_size)
    writers = {split: ShardWriter(folder, split, dtype, **progress.splits[split]) for split in SPLITS}
    batches, work = source.batches(progress.position), (progress.command["val_fraction"], dtype.str)
    if (limit := progress.command["limit"]) is not None:
        batches = first(limit - progress.documents, batches)
    started, before = time.perf_counter(), sum(writer.tokens for writer in writers.values())
    with tqdm(total=limit, initial=progress.documents, unit=" documents", disable=None) as bar:
        encoded = in_parallel(batches, num_proc, (tokenizer.to_json(), *work))
        for number, (batch, result) in enumerate(encoded, start=1):
            for split, tokens in result.tokens.items():
                writers[split].append(tokens)
            for reason, documents in result.skipped.items():
                progress.skipped[reason] += documents
            progress.documents += len(batch.records)
            progress.position = batch.position
            bar.update(len(batch.records))
            if number % SAVE_EVERY == 0:
                progress.splits = {split: writers[split].state() for split in SPLITS}
                progress.save(state)
    seconds = time.perf_counter() - started
    tokens = sum(writer.tokens for writer in writers.values()) - before
    print(f"{tokens:,} tokens in {seconds:.1f} s: {tokens / seconds / 1e6:.2f} million a second")
    return {split: writer.finish() for split, writer in writers.items()}


def first(limit: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches of the first `limit` documents."""
    for batch in batches:
        if limit <= 0:
            return
        yield batch._replace(records=batch.records[:limit])
        limit -= len(batch.records)


class Encoded(NamedTuple):
    """The tokens of a batch."""

    tokens: dict[str, bytes]  # of each split, as they are stored
    skipped: dict[str, int]  # how many documents, by what was wrong


def in_parallel(batches: Iterator[Batch], num_proc: int, work: tuple) -> Iterator[tuple[Batch, Encoded]]:
    """Each batch, in order, with its tokens. Only a few are on their way at a time, so memory stays flat."""
    # Spawned, because a fork of a process with threads, as the readers have them, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_proc, context, start_worker, work) as pool:
        pending = deque()
        try:
            for batch in batches:
                pending.append((batch, pool.submit(encode, batch.records, batch.json_lines)))
                if len(pending) > 2 * num_proc:
                    batch, future = pending.popleft()
                    yield batch, future.result()
            for batch, future in pending:
                yield batch, future.result()
        except BrokenProcessPool:
            raise UserError(
                "a process that tokenizes was killed, perhaps for want of memory: give the same command "
                f"to go on, with fewer than --num_proc={num_proc}"
            ) from None


def start_worker(described: dict, val_fraction: float, dtype: str) -> None:
    """Prepare a process for `encode`."""
    global work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that writes, which ends this one
    threading.Thread(target=end_with_parent, daemon=True).start()
    eot = np.array([end_of_text(described)], np.uint32)
    work = from_json(described), eot, int(val_fraction * 2**64), np.dtype(dtype)


def end_with_parent() -> None:
    """End this process when the one that writes was killed; the pool would have it wait for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def encode(records: list[bytes | None], json_lines: bool) -> Encoded:
    """The tokens of these documents, end-of-text after each; in a process that `start_worker` prepared."""
    tokenizer, eot, val_below, dtype = work
    pieces, skipped = {split: [] for split in SPLITS}, {"corrupt": 0, "empty": 0}
    for record in records:
        try:
            text = text_of(record, json_lines)
        except (ValueError, RecursionError):  # the latter of JSON with thousands of brackets
            skipped["corrupt"] += 1
            continue
        if not text.strip():
            skipped["empty"] += 1
            continue
        drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        pieces["val" if drawn < val_below else "train"] += [tokenizer.encode_ordinary(text), eot]
    tokens = {split: np.concatenate(some).astype(dtype).tobytes() for split, some in pieces.items() if some}
    return Encoded(tokens, skipped)


def finished(
    folder: Path, state: Path, progress: Progress, shards: dict[str, list[dict]], described: dict
) -> dict:
    """What meta.json holds. Raises UserError, and deletes the files, when a split has no documents."""
    if missing := [split for split in SPLITS if not shards[split]]:
        for path in (*folder.glob(".*_?????.bin.tmp"), state):
            path.unlink(missing_ok=True)
        raise UserError(
            f"{described['source']}: {progress.documents} documents, of which {in_words(progress.skipped)}, "
            f"leave none for {missing[0]}: give more, each with a text, or another --val_fraction"
        )
    counts = {split: sum(shard["tokens"] for shard in shards[split]) for split in SPLITS}
    return described | {"counts": counts, "shards": shards}


def report(folder: Path, progress: Progress) -> None:
    counts = progress.meta["counts"]
    print(
        f"{folder}: {progress.documents:,} documents, "
        f"{counts['train']:,} train and {counts['val']:,} validation tokens"
    )
    if any(progress.skipped.values()):
        print(f"skipped of these: {in_words(progress.skipped)}")


def in_words(skipped: dict[str, int]) -> str:
    return " and ".join(f"{documents:,} {reason}" for reason, documents in skipped.items())
