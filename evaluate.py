"""Evaluate a trained model: its loss on an entire split of a data set, or its accuracy on HellaSwag.

    python evaluate.py --out_dir=out-quickstart                     every option: python evaluate.py --help
    python evaluate.py --init_from=gpt2 --dataset=shakespeare
    python evaluate.py --out_dir=out --hellaswag=hellaswag_val.jsonl --json=result.json

The loss is exact: every token of the split but the first is predicted once. Windows of block_size tokens
begin `stride` tokens apart, and each counts the predictions that the one before has not made. So all tokens,
except at the very beginning, are predicted from at least block_size - stride tokens before them.
"""

import config.interrupt  # noqa: F401  Ctrl-C is quiet from here on

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from jaxtyping import Int

from config.command_line import Address, Count, Name, NonNegativeInt, UserError, command, given
from config.files import check_writable, write_whole
from config.options import ModelOptions
from data.batches import Batches
from data.dataset import Dataset, prepare_if_missing
from data.tokenizer import end_of_text, from_json
from model import GPT
from parallel.hosts import on_process_0
from parallel.mesh import check_fit
from runs.hardware import on_devices
from runs.load import load_model
from runs.manifest import latest_manifest
from tools.evaluation.hellaswag import accuracies, read_examples, tokenize_examples
from tools.evaluation.score import score

PIECE = 2**16  # tokens that are decoded at once


@dataclass(frozen=True)
class EvaluateOptions(ModelOptions):
    """The options of evaluate.py. The comment after a field is its text in `--help`."""

    program: ClassVar[str] = "evaluate.py"
    purpose: ClassVar[str] = "Evaluate a trained model: its loss on a data set, or HellaSwag."

    dataset: Name | None = None  # folder below data/ that holds the split; None: what the run was trained on
    split: Literal["val", "train"] = "val"  # split of the data set
    block_size: Count | None = None  # tokens read at once, at most; None: all that the model can
    stride: Count | None = None  # tokens from one window to the next; None: block_size / 2
    hellaswag: Name | None = None  # JSONL file of HellaSwag's examples to score, in place of a data set
    batch_size: Count = 8  # rows computed at once, by all devices together
    json: Name | None = None  # file to write the result to as well
    mesh: Name = "data:-1"  # devices per axis of data, fsdp and tensor, as in data:2,fsdp:4; -1: the rest
    coordinator: Address | None = None  # host:port of process 0, if there are many; auto: ask the launcher
    num_processes: Count | None = None  # how many processes evaluate together
    process_id: NonNegativeInt | None = None  # number of this process, from 0
    compilation_cache: bool = True  # keep compiled programs in ~/.cache/nanojaxgpt for the next start


def main(argv: list[str]) -> None:
    options = EvaluateOptions(**given(argv, EvaluateOptions))
    advice = "choose another --json"
    with on_devices(options):
        if options.json:
            on_process_0(check_writable, Path(options.json), advice)
        model, tokenizer = load_model(options.init_from, options.out_dir, options.dtype)
        most = model.config.block_size
        T = options.block_size or most
        if T > most:
            raise UserError(f"--block_size is {T}, but the model reads {most}: give 1 to {most}")
        check_fit(jax.sharding.get_mesh(), model.config, options.batch_size)
        result = (evaluate_hellaswag if options.hellaswag else evaluate_split)(model, tokenizer, options, T)
        if options.json:
            on_process_0(write_whole, Path(options.json), json.dumps(result, indent=1) + "\n", advice)


def evaluate_split(model: GPT, tokenizer: dict | None, options: EvaluateOptions, T: int) -> dict[str, Any]:
    """Print and return the mean loss over the split, and figures derived from it. Raises UserError."""
    stride = options.stride or max(1, T // 2)
    if stride > T:
        raise UserError(f"--stride is {stride}, but the model reads {T} tokens at once: give 1 to {T}")
    name, dataset = find_dataset(tokenizer, options)
    batches = Batches(dataset, options.split, options.batch_size, T, seed=0)  # the seed is not used
    n = len(batches.tokens) - 1
    windows, shape = batches.every_window(stride), (options.batch_size, T)
    nats, seconds = score(model, windows, shape, n, batches.tokens.paths[0])
    loss = float(nats.sum(dtype=np.float64) / n)
    perplexity = float(np.exp(loss))
    pieces = (batches.tokens.read([i], min(PIECE, n + 1 - i))[0] for i in range(1, n + 1, PIECE))
    n_bytes = bytes_of_text(pieces, tokenizer)
    per_byte = n * loss / math.log(2) / n_bytes if n_bytes else None
    in_bits = f"{per_byte:.4f} bits per byte" if per_byte else "no bits per byte: its tokens are not text"
    print(f"{name}, {options.split}: loss {loss:.4f} nats per token, perplexity {perplexity:.4f}, {in_bits}")
    print(f"{n:,} tokens, in windows of {T} that begin {stride} apart, {n / seconds:,.0f} tokens/s")
    return {
        **{"dataset": name, "split": options.split, "block_size": T, "stride": stride},
        **{"tokens": n, "bytes": n_bytes, "loss": loss, "perplexity": perplexity},
        **{"bits_per_byte": per_byte, "tokens_per_second": n / seconds},
    }


def find_dataset(tokenizer: dict | None, options: EvaluateOptions) -> tuple[str, Dataset]:
    """Return the data set to evaluate on, by name. Raises UserError unless it has the model's tokenizer."""
    if options.init_from != "resume" and not options.dataset:
        raise UserError(f"init_from={options.init_from} says nothing of a data set: give one with --dataset")
    name = options.dataset or latest_manifest(options.out_dir).options.dataset
    on_process_0(prepare_if_missing, name)
    dataset = Dataset(name)
    if dataset.meta.tokenizer != tokenizer:
        lacks = " (a folder of --init_from has none without tokenizer.json)" if tokenizer is None else ""
        raise UserError(f"dataset={name} has another tokenizer than the model{lacks}: give one with its own")
    return name, dataset


def bytes_of_text(pieces: Iterable[Int[np.ndarray, " N"]], tokenizer: dict | None) -> int:
    """Count the UTF-8 bytes of tokens, of which end-of-text has none; 0 if they are not text."""
    if tokenizer is None:
        return 0
    decode, eot = from_json(tokenizer).stream(), end_of_text(tokenizer)
    n_bytes = sum(len(decode(ids[ids != eot]).encode()) for ids in pieces)
    return n_bytes + len(decode([], final=True).encode())


def evaluate_hellaswag(
    model: GPT, tokenizer: dict | None, options: EvaluateOptions, T: int
) -> dict[str, Any]:
    """Print and return the accuracies on the examples of the HellaSwag file. Raises UserError."""
    if tokenizer is None:
        raise UserError("--hellaswag is text, and no tokenizer is known for this model: evaluate another")
    path, B = str(options.hellaswag), options.batch_size
    examples = read_examples(path)
    x, y = tokenize_examples(examples, from_json(tokenizer).encode, T)
    R, T = x.shape
    x = np.pad(x, ((0, -R % B), (0, 0))).reshape(-1, B, T)
    y = np.pad(y, ((0, -R % B), (0, 0)), constant_values=-1).reshape(-1, B, T)
    nats, seconds = score(model, zip(x, y, strict=True), (B, T), int((y >= 0).sum()), path)
    found = accuracies(examples, nats[:R])
    speed = len(examples) / seconds
    print(
        f"{path}: acc {found['acc']:.2%}, acc_norm {found['acc_norm']:.2%} (per character) "
        f"of {len(examples):,} examples, {speed:,.1f} examples/s"
    )
    return {"hellaswag": path, "examples": len(examples), **found, "examples_per_second": speed}


if __name__ == "__main__":
    command(main)
