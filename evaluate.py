"""Evaluate a trained model: its loss on an entire split of a data set, or its answers to questions.

    python evaluate.py --out_dir=out-quickstart                     every option: python evaluate.py --help
    python evaluate.py --init_from=gpt2 --dataset=shakespeare
    python evaluate.py --out_dir=out --split=train --json=result.json
    python evaluate.py --out_dir=out-rl --beside=out-chat,a-folder --tasks=add,reverse      of data/tasks.py
    python evaluate.py --out_dir=out-rl --beside=out-chat --ask=experiments/first_questions.txt

Every token of the split but the first is predicted once, and from at least block_size - stride tokens before
it where there are so many; of packed conversations, each that is learned, from its own row. What the figures
mean is in docs/evaluation.md.
"""

from common.errors import command  # isort: split

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int
from scipy.stats import binomtest
from tqdm import tqdm

from common.command_line import Address, Count, Name, NonNegativeInt, given, refuse_unused
from common.errors import UserError
from common.files import check_writable, decode_text, write_whole
from config.options import ModelOptions
from data.dataset import Batches, Dataset, Meta, TokenFile, prepare_if_missing
from data.spans import document_bytes
from data.tasks import Question, named_tasks
from data.tokenizer import document_start, end_of_text, same_tokens
from generation.sampling import GREEDY, PLAIN
from model import GPT
from parallel.machines import on_devices, on_process_0
from parallel.mesh import batch_shape, check_fit, distribute
from rewards.answers import Sampler
from rewards.evaluation import held_out
from runs.checkpoint import latest_manifest
from runs.load import is_run, load_model, tokenizer_of

LONGEST = 1024  # tokens of a question and its answer: for a model of the hub, the length of its cache
USED = {  # by what is evaluated: options that are not for all
    None: ("dataset", "split", "block_size", "stride", "batch_size", "add_special_tokens"),
    "--tasks": ("questions", "max_new_tokens", "beside"),
    "--ask": ("questions", "max_new_tokens", "beside"),
}


@dataclass(frozen=True)
class EvaluateOptions(ModelOptions):
    """Evaluate a trained model: its loss on a data set."""

    dataset: Name | None = None  # folder below data/ that holds the split; None: what the run was trained on
    split: Literal["val", "train"] = "val"  # split of the data set
    block_size: Count | None = None  # tokens of a window; None: as many as the model takes
    stride: Count | None = None  # tokens from one window to the next; None: block_size / 2
    batch_size: Count = 8  # rows computed at once, by all devices together
    add_special_tokens: bool = True  # False: leave out a token that only begins documents, as Llama's <s>
    tasks: Name | None = None  # answer held-out questions of these instead, as in add,date; all: every task
    ask: Name | None = None  # answer the questions of this file instead, one in a line
    questions: Count = 200  # of each task, or of the file at most
    max_new_tokens: Count = 32  # tokens of an answer
    beside: Name | None = None  # to answer the same: folders, and runs' last checkpoints, with commas between
    json: Name | None = None  # file to write the result to as well
    mesh: Name = "data:-1"  # devices per axis of data, fsdp and tensor, as in data:2,fsdp:4; -1: the rest
    coordinator: Address | None = None  # host:port of process 0, if there are many; auto: ask the launcher
    num_processes: Count | None = None  # how many processes evaluate together
    process_id: NonNegativeInt | None = None  # number of this process, from 0
    compilation_cache: bool = True  # keep compiled programs in ~/.cache/nanojaxgpt for the next start


def main(argv: list[str]) -> None:
    values = given(argv, EvaluateOptions)
    options = EvaluateOptions(**values)
    if options.tasks and options.ask:
        raise UserError("--tasks and --ask are given: give one of them")
    of = "--tasks" if options.tasks else "--ask" if options.ask else None
    unused = {name for names in USED.values() for name in names}.difference(USED[of])
    refuse_unused(values, unused, f" is not used {f'with {of}' if of else 'without --tasks or --ask'}")
    with on_devices(options):
        if options.json:
            on_process_0(check_writable, Path(options.json))
        if options.ask:
            result = answer_lines(options, options.ask)
        else:
            result = answer_tasks(options) if options.tasks else evaluate_on_text(options)
        if options.json:
            on_process_0(write_whole, Path(options.json), json.dumps(result, indent=1) + "\n")


def evaluate_on_text(options: EvaluateOptions) -> dict[str, Any]:
    """Print and return the mean loss over the split, and figures derived from it. Raises UserError."""
    model, tokenizer = load_model(options)
    T, stride = window_and_stride(options, model.config.block_size)
    check_fit(jax.sharding.get_mesh(), model.config, options.batch_size)
    name, dataset = find_dataset(tokenizer, model.config.vocab_size, options)
    batches = Batches(dataset.tokens(options.split), options.batch_size, T, seed=0)  # the seed is not used
    tokens = batches.tokens
    if tokens.row is not None:
        windows = {"stride": options.stride, "add_special_tokens": not options.add_special_tokens}
        asked = [option for option, is_given in windows.items() if is_given]
        refuse_unused(asked, windows, f" is not used with {name}, which has rows of conversations")
    if not options.add_special_tokens and (start := document_start(tokenizer)) != end_of_text(tokenizer):
        tokens.ids = tokens.ids[tokens.ids != start]
    n = len(tokens) - 1 if tokens.learned is None else int(tokens.learned.sum())
    nats, seconds = score(model, batches, stride)
    loss = float(nats.sum(dtype=np.float64) / n)
    perplexity = float(np.exp(loss))
    n_bytes = predicted_bytes(tokens, dataset.meta)
    per_byte = n * loss / math.log(2) / n_bytes if n_bytes else None
    unknown = "no bits per byte: the data set does not say how many its text has"
    in_bits = f"{per_byte:.4f} bits per byte" if per_byte else unknown
    print(f"{name}, {options.split}: loss {loss:.4f} nats per token, perplexity {perplexity:.4f}, {in_bits}")
    windows = f"in windows of {T} that begin {stride} apart"
    where = windows if tokens.row is None else f"learned, in rows of {T}"
    print(f"{n:,} tokens, {where}, {n / seconds:,.0f} tokens/s")
    return {
        "dataset": name,
        "split": options.split,
        "block_size": T,
        "stride": stride if tokens.row is None else None,
        "tokens": n,
        "bytes": n_bytes,
        "loss": loss,
        "perplexity": perplexity,
        "bits_per_byte": per_byte,
        "tokens_per_second": n / seconds,
    }


def window_and_stride(options: EvaluateOptions, most: int) -> tuple[int, int]:
    """Return the tokens of a window, and from one window to the next. Raises UserError."""
    T = options.block_size or most
    if T > most:
        raise UserError(f"--block_size is {T}, but the model reads {most}: give 1 to {most}")
    stride = options.stride or max(1, T // 2)
    if stride > T:
        raise UserError(f"--stride is {stride}, but the model reads {T} tokens at once: give 1 to {T}")
    return T, stride


def predicted_bytes(tokens: TokenFile, meta: Meta) -> int:
    """Return how many bytes of text the predicted tokens stand for; 0: unknown."""
    if counted := meta.bytes.get(tokens.split):
        return counted.total - (counted.of_first if tokens.ids[0] == counted.first else 0)
    # A tokenizer.json may change a text, as by NFC or <unk>.
    if meta.tokenizer is None or meta.tokenizer["type"] == "tokenizers":
        return 0
    sizes = np.fromiter(map(len, document_bytes(tokens.ids, meta.tokenizer)), int, len(tokens))
    return int(sizes[slice(1, None) if tokens.learned is None else tokens.learned].sum())


def score(model: GPT, batches: Batches, stride: int) -> tuple[Float[np.ndarray, " R"], float]:
    """Return -log p summed over each window's targets, in nats, and the seconds taken. Raises UserError."""
    tokens, V = batches.tokens, model.config.vocab_size
    batch = batch_shape(batches.B, batches.T)
    compiled = jax.jit(score_rows).lower(model, batch, batch).compile()
    nats = []
    quiet = True if jax.process_index() > 0 else None  # None: only if stderr is no terminal
    start = time.perf_counter()
    with tqdm(total=len(tokens) - 1, unit="token", unit_scale=True, leave=False, disable=quiet) as bar:
        for x, y in batches.every_window(stride):
            if (largest := max(x.max(), y.max())) >= V:
                raise UserError(f"{tokens.path}: token {largest} is not of the model's vocabulary of {V}")
            nats.append(compiled(model, distribute(x), distribute(y)))
            bar.update((y >= 0).sum())
    return np.concatenate([np.asarray(rows) for rows in nats]), time.perf_counter() - start


def score_rows(model: GPT, x: Int[Array, "B T"], y: Int[Array, "B T"]) -> Float[Array, " B"]:
    """Return -log p summed over each row's targets, replicated, so that every process has all of it."""
    nats = model.nats(model.features(x), y)
    return eqx.filter_shard(nats, PartitionSpec())


def find_dataset(tokenizer: dict | None, V: int, options: EvaluateOptions) -> tuple[str, Dataset]:
    """Return the data set to evaluate on, by name. Raises UserError unless it has the model's tokenizer."""
    run = latest_manifest(options.out_dir) if options.init_from == "resume" else None
    name = options.dataset or (run.options.dataset if run else None)
    if name is None:
        raise UserError(f"init_from={options.init_from} says nothing of a data set: give one with --dataset")
    on_process_0(prepare_if_missing, name)
    dataset = Dataset(name, V)
    if run:
        run.check_text(name, dataset.meta.sha256)
    if not same_tokens(dataset.meta.tokenizer, tokenizer):
        lacks = " (a folder of --init_from has none without tokenizer.json)" if tokenizer is None else ""
        raise UserError(f"dataset={name} has another tokenizer than the model{lacks}: give one with its own")
    return name, dataset


# Answers to questions


def answer_tasks(options: EvaluateOptions) -> dict[str, Any]:
    """Print and return each model's shares of right answers, by task. Raises UserError."""
    tasks = named_tasks(options.tasks)
    right = {name: right_answers(source, tasks) for name, source in models_to_ask(options).items()}
    first = next(iter(right))
    models = {name: {task: {} for task in tasks} for name in right}
    for how in ("greedy", "sampled"):
        print(f"{how}: right of {options.questions} held-out questions of each task, each subject once")
        for task in tasks:
            shown = []
            for name, of_model in right.items():
                found = compare(of_model[how][task], right[first][how][task])
                share, low, high = (100 * x for x in found[:3])
                beside = "" if name == first else f" p={found[3]:.2g}"
                n = len(of_model[how][task])
                models[name][task][how] = [*found, n]
                shown.append(f"{name} {share:5.1f}% of {n} ({low:.1f} to {high:.1f}){beside}")
            print(f"  {task:10}" + "   ".join(shown))
    return {"questions": options.questions, "models": models}


def answer_lines(options: EvaluateOptions, file: str) -> dict[str, Any]:
    """Print and return what each model answers to lines of a file, greedily. Raises UserError."""
    lines = decode_text(Path(file).read_bytes(), f"--ask={file}").splitlines()
    asked = [Question("ask", line, line, "") for line in map(str.strip, lines) if line][: options.questions]
    if not asked:
        raise UserError(f"--ask={file}: it has no questions: write one in a line")
    models = {}
    for name, source in models_to_ask(options).items():
        model, sampler = answering(source)
        models[name] = [answer.text for answer in sampler(model, asked, jax.random.key(0), GREEDY)]
    for question, *answers in zip(asked, *models.values(), strict=True):
        print(question.text)
        for name, answer in zip(models, answers, strict=True):
            print(f"    {name}: {answer}")
    return {"questions": [question.text for question in asked], "models": models}


def models_to_ask(options: EvaluateOptions) -> dict[str, EvaluateOptions]:
    """Return options to load each model with, by its name. Raises UserError for more than one device."""
    if jax.sharding.get_mesh().size > 1:
        raise UserError("questions are answered on one device: give --mesh=data:1")
    first = options.out_dir if options.init_from == "resume" else options.init_from
    sources = {first: options}
    for name in options.beside.split(",") if options.beside else []:
        source = dict(init_from="resume", out_dir=name) if is_run(name) else dict(init_from=name)
        if name in sources:
            raise UserError(f"--beside={options.beside}: {name} is asked already: name each model once")
        sources[name] = replace(options, checkpoint="last", **source)
    return sources


def answering(source: EvaluateOptions) -> tuple[GPT, Sampler]:
    """Load a model, and what draws its answers."""
    model, description = load_model(source, LONGEST)
    tokenizer = tokenizer_of(description, source.init_from, source.out_dir)
    return model, Sampler(tokenizer, source.max_new_tokens, pretrained=source.init_from != "resume")


def right_answers(source: EvaluateOptions, tasks: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Return which answers of a model are right, 1 or 0: greedy and sampled ones, by task."""
    model, sampler = answering(source)
    return {
        how: held_out(model, tasks, "test", source.questions, sampler, settings)
        for how, settings in (("greedy", GREEDY), ("sampled", PLAIN))
    }


def compare(right: Float[np.ndarray, " N"], first: Float[np.ndarray, " N"]) -> list[float]:
    """Return the share of right answers, its interval's ends, and p of McNemar's test beside the first."""
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    only, only_first = int((right > first).sum()), int((right < first).sum())
    p = binomtest(only, only + only_first).pvalue if only + only_first else 1.0
    return [right.mean(), interval.low, interval.high, p]


if __name__ == "__main__":
    command(main)
