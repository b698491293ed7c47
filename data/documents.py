"""Write a data set of any size: documents are read, tokenized in parallel, split and written as they stream.

Each document is followed by the tokenizer's end-of-text token. A document's own hash decides whether it is
for training or for validation: its copies are in the same split, and it stays there when others are added.

`.prepare.json` records from time to time how much of the data set is safely on disk. After a kill the same
command goes on from there, and its files are the same to the byte.
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
from config.files import HOLDS_TOKENIZER, is_plain_name, read_json, write_whole
from data.shards import ShardWriter, publish
from data.sources import SEPARATOR, DocumentBatch, Files, Hub, Position, extract_text
from data.tokenizer import JsonTokenizer, TiktokenTokenizer, end_of_text, from_json
from data.writer import common_meta, token_dtype

SAVE_EVERY = 64  # batches, of about a megabyte each, between two records of the progress
SPLITS = ("train", "val")


@dataclass
class Progress:
    """The progress of a command, as `.prepare.json` holds it."""

    command: dict[str, Any]  # the inputs that decide the tokens: only the same command may go on
    position: Position = None  # of the next document in the source
    documents: int = 0  # number read so far, including those skipped
    skipped: dict[str, int] = field(default_factory=lambda: {"corrupt": 0, "empty": 0})
    splits: dict[str, dict] = field(
        default_factory=lambda: {split: {} for split in SPLITS}
    )  # writers' sync()
    meta: dict | None = None  # contents of meta.json, once all is written and only renaming is left

    def save(self, path: Path) -> None:
        values = asdict(self)
        text = json.dumps({"progress": values, "sha256": digest(values)})
        write_whole(path, text, "make room, and give the same command to go on")


def write_documents(
    folder: Path,
    source: Files | Hub,
    tokenizer: TiktokenTokenizer | JsonTokenizer,
    val_fraction: float,
    limit: int | None = None,
    num_proc: int | None = None,
) -> None:
    """Write the source's documents, or the first `limit` of them, as a data set in `folder`. Print a summary.

    The number of processes that tokenize, `num_proc` (None: one per core), changes only the time it takes.
    Corrupt and empty documents are skipped and counted. Raises UserError when the source cannot be read, no
    document is left for a split, the tokenizer has no end-of-text token, the folder cannot be written, or it
    holds the beginning of another data set.
    """
    if end_of_text(tokenizer.to_json()) is None:
        raise UserError("the tokenizer has no end-of-text token, such as <|endoftext|>: choose another")
    command = {
        "source": source.fingerprint(),
        "tokenizer": digest(tokenizer.to_json()),
        "val_fraction": val_fraction,
        "limit": limit,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        progress_path = folder / ".prepare.json"
        progress = load_progress(progress_path, command) or Progress(command)
        if progress.meta is None:
            num_proc = num_proc or os.cpu_count() or 1
            shards = write_tokens(folder, progress_path, progress, source, tokenizer, num_proc)
            meta = common_meta(tokenizer, str(source))
            progress.meta = complete_meta(folder, progress_path, progress, shards, meta)
            progress.save(progress_path)
        publish(folder, progress.meta)
        progress_path.unlink()
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the data set ({error}): make room, and give the same command to go on"
        ) from None
    print_summary(folder, progress, progress.meta["counts"])


def load_progress(path: Path, command: dict[str, Any]) -> Progress | None:
    """Load the progress of the same command before it was stopped, or None if there is none.

    Raises UserError when the file is damaged, or is another command's.
    """
    if not path.exists():
        return None
    try:
        match read_json(path, HOLDS_TOKENIZER):
            case {"progress": dict(values), "sha256": sha256} if sha256 == digest(values):
                progress = Progress(**values)
            case _:
                raise ValueError("not what this version writes")
        shards = (progress.meta or {}).get("shards", {})
        if not all(is_plain_name(shard["file"]) for split in shards.values() for shard in split):
            raise ValueError("a file of the data set is outside of its folder")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error}): delete it to begin anew") from None
    if progress.command != command:
        raise UserError(
            f"{path.parent} holds the beginning of another command's data set, or its source has changed: "
            f"give that command to go on with it, or delete {path} to begin anew"
        )
    print(f"going on after {progress.documents:,} documents")
    return progress


def digest(values: Any) -> str:
    """Return the hash of JSON values: with it `.prepare.json` shows that it is as a command wrote it."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def write_tokens(
    folder: Path,
    progress_path: Path,
    progress: Progress,
    source: Files | Hub,
    tokenizer: TiktokenTokenizer | JsonTokenizer,
    num_proc: int,
) -> dict[str, list[dict]]:
    """Write the tokens of all documents after `progress`, which is updated and saved on the way.

    Return the entries of meta.json for the files of each split.
    """
    dtype = token_dtype(tokenizer.vocab_size)
    writers = {split: ShardWriter(folder, split, dtype, **progress.splits[split]) for split in SPLITS}
    batches = source.batches(progress.position)
    if (limit := progress.command["limit"]) is not None:
        batches = take_documents(limit - progress.documents, batches)
    worker_arguments = (tokenizer.to_json(), progress.command["val_fraction"], dtype.str)
    started, before = time.perf_counter(), sum(writer.tokens for writer in writers.values())
    tokenized = tokenize_in_parallel(batches, num_proc, worker_arguments)
    with tqdm(total=limit, initial=progress.documents, unit=" documents", disable=None) as bar:
        for number, (batch, result) in enumerate(tokenized, start=1):
            for split, tokens in result.tokens.items():
                writers[split].append(tokens)
            for reason, documents in result.skipped.items():
                progress.skipped[reason] += documents
            progress.documents += len(batch.records)
            progress.position = batch.position
            bar.update(len(batch.records))
            if number % SAVE_EVERY == 0:
                progress.splits = {split: writers[split].sync() for split in SPLITS}
                progress.save(progress_path)
    seconds = time.perf_counter() - started
    tokens = sum(writer.tokens for writer in writers.values()) - before
    print(f"{tokens:,} tokens in {seconds:.1f} s: {tokens / seconds / 1e6:.2f} million a second")
    return {split: writer.finish() for split, writer in writers.items()}


def take_documents(limit: int, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
    """Yield the batches of the first `limit` documents."""
    for batch in batches:
        if limit <= 0:
            return
        yield batch._replace(records=batch.records[:limit])
        limit -= len(batch.records)


class TokenizedBatch(NamedTuple):
    """The tokens of a batch of documents."""

    tokens: dict[str, bytes]  # by split, in the type in which they are stored
    skipped: dict[str, int]  # number of documents skipped, by the reason


def tokenize_in_parallel(
    batches: Iterator[DocumentBatch], num_proc: int, worker_arguments: tuple[dict, float, str]
) -> Iterator[tuple[DocumentBatch, TokenizedBatch]]:
    """Yield each batch, in order, with its tokens. `worker_arguments` are those of `start_worker`.

    At most 2 num_proc + 1 batches are pending at a time, so that memory stays flat. Raises UserError when a
    process was killed.
    """
    # Processes are spawned, because a fork of one with threads, as the readers have them, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_proc, context, start_worker, worker_arguments) as pool:
        pending = deque()
        try:
            for batch in batches:
                pending.append((batch, pool.submit(tokenize_documents, batch.records, batch.json_lines)))
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


worker: tuple  # set by `start_worker`: tokenizer, its end-of-text, bound of validation's digests, dtype


def start_worker(description: dict, val_fraction: float, dtype: str) -> None:
    """Prepare a process for `tokenize_documents`, with the tokenizer that `description` describes."""
    global worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that writes, which ends this one
    threading.Thread(target=end_with_parent, daemon=True).start()
    eot = np.array([end_of_text(description)], np.uint32)
    worker = from_json(description), eot, int(val_fraction * 2**64), np.dtype(dtype)


def end_with_parent() -> None:
    """End this process when the one that writes has been killed. Without this it would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a worker calls this"
    parent.join()
    os._exit(1)


def tokenize_documents(records: list[bytes | None], json_lines: bool) -> TokenizedBatch:
    """Return the tokens of documents, end-of-text after each, in a process that `start_worker` prepared."""
    tokenizer, eot, val_below, dtype = worker
    pieces, skipped = {split: [] for split in SPLITS}, {"corrupt": 0, "empty": 0}
    for record in records:
        try:
            text = extract_text(record, json_lines)
        except (ValueError, RecursionError):  # JSON with thousands of brackets raises the second
            skipped["corrupt"] += 1
            continue
        if not text.strip():
            skipped["empty"] += 1
            continue
        place = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        pieces["val" if place < val_below else "train"] += [tokenizer.encode_ordinary(text), eot]
    tokens = {split: np.concatenate(ids).astype(dtype).tobytes() for split, ids in pieces.items() if ids}
    return TokenizedBatch(tokens, skipped)


def complete_meta(
    folder: Path, progress_path: Path, progress: Progress, shards: dict[str, list[dict]], meta: dict
) -> dict:
    """Return `meta` with the entries about the files added.

    Raises UserError, and deletes the files and the progress, when a split has no documents.
    """
    if missing := [split for split in SPLITS if not shards[split]]:
        for path in (*folder.glob(".*_?????.bin.tmp"), progress_path):
            path.unlink(missing_ok=True)
        advice = "give more, or another --val_fraction"
        if progress.documents - sum(progress.skipped.values()) < 2:  # whatever the fraction
            advice = (
                f'give at least two: in .txt there is a line of "{SEPARATOR.decode()}" between them, in '
                '.jsonl each is a line with a string under "text", and all are UTF-8'
            )
        raise UserError(
            f"{meta['source']}: {progress.documents} documents, of which {list_skipped(progress.skipped)}, "
            f"leave none for {missing[0]}: {advice}"
        )
    counts = {split: sum(shard["tokens"] for shard in shards[split]) for split in SPLITS}
    return meta | {"counts": counts, "shards": shards}


def print_summary(folder: Path, progress: Progress, counts: dict[str, int]) -> None:
    print(
        f"{folder}: {progress.documents:,} documents, "
        f"{counts['train']:,} train and {counts['val']:,} validation tokens"
    )
    if any(progress.skipped.values()):
        print(f"skipped of these: {list_skipped(progress.skipped)}")


def list_skipped(skipped: dict[str, int]) -> str:
    return " and ".join(f"{documents:,} {reason}" for reason, documents in skipped.items())
