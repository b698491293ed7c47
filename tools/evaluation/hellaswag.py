"""HellaSwag: choose which of four endings follows a text about an everyday situation (arXiv:1905.07830).

    examples = read_examples("hellaswag_val.jsonl")     # from github.com/rowanz/hellaswag, 10,042 examples
    x, y = tokenize_examples(examples, tokenizer.encode, block_size)
    accuracies(examples, nats)                          # nats of a row: -log p(its ending | its context)

Texts are cleaned, joined and shortened as in lm-evaluation-harness 0.4.13 (lm_eval/tasks/hellaswag/utils.py,
`_encode_pair` in lm_eval/api/model.py), so that the figures can be compared with published ones.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from config.command_line import UserError, spell
from config.files import parse_json

LENGTH_STEP = 64  # rows are as long as a multiple of this, which suits the kernels of accelerators


class Example(NamedTuple):
    """A context, the endings to choose from, and which of them is right. The texts are cleaned up."""

    context: str
    endings: list[str]
    label: int  # the index of the right ending
    place: str  # "file:line", which errors name


def read_examples(path: str) -> list[Example]:
    """Read the examples of a JSONL file. Raises UserError, naming the file and line.

    A line has `endings`, `label` and either `activity_label`, `ctx_a` and `ctx_b`, as all of the official
    files have, or `ctx` alone, which is then the entire context.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = enumerate(file, 1)
            examples = [_parse_example(line, f"{path}:{number}") for number, line in lines if line.strip()]
    except (OSError, ValueError) as error:  # ValueError: it is not UTF-8
        raise UserError(f"--hellaswag={path}: cannot be read ({error}): give a JSONL file") from None
    if not examples:
        raise UserError(f"--hellaswag={path}: there is no example in it: give a JSONL file")
    return examples


def _parse_example(line: str, place: str) -> Example:
    try:
        fields = parse_json(line)
    except ValueError as error:
        raise UserError(f"{place}: not a JSON object ({error}): correct or delete it") from None
    match fields:
        case {"activity_label": str(activity), "ctx_a": str(a), "ctx_b": str(b)}:
            context = f"{activity}: {a} {b.capitalize()}"
        case {"ctx": str(context)}:
            pass
        case _:
            raise UserError(f"{place}: no context: expected ctx, or activity_label, ctx_a, ctx_b, as texts")
    endings, label = fields.get("endings"), fields.get("label")
    if not isinstance(endings, list) or len(endings) < 2 or not all(isinstance(x, str) for x in endings):
        raise UserError(f"{place}: endings must be two texts or more")
    context, *endings = map(clean, [context, *endings])
    if not all(map(str.strip, [context, *endings])):
        raise UserError(f"{place}: the context or an ending is empty: delete the line")
    if str(label) not in map(str, range(len(endings))):  # it is a string in Hugging Face's copy
        expected = f"expected 0 to {len(endings) - 1}; the test set has none, take hellaswag_val.jsonl"
        raise UserError(f"{place}: label is {spell(label)}, {expected}")
    return Example(context, endings, int(label), place)


def clean(text: str) -> str:
    """Remove WikiHow's marks, such as [header] and [step], which many examples still have."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def tokenize_examples(
    examples: list[Example], encode: Callable[[str], Int[np.ndarray, " N"]], block_size: int
) -> tuple[Int[np.ndarray, "R T"], Int[np.ndarray, "R T"]]:
    """Return inputs and targets, int32: a row for each ending of each example in turn.

    Targets are -1 for the context, and for the padding on the right. A context that is too long with its
    ending loses its beginning. Raises UserError, naming the line, for an ending that is too long.
    """
    pairs = [pair for example in examples for pair in _encode_endings(example, encode, block_size)]
    longest = max(len(tokens) for tokens, _ in pairs) - 1
    T = min(block_size, -(-longest // LENGTH_STEP) * LENGTH_STEP)
    x, y = np.zeros((len(pairs), T), np.int32), np.full((len(pairs), T), -1, np.int32)
    for i, (tokens, n) in enumerate(pairs):
        end = len(tokens) - 1
        x[i, :end], y[i, end - n : end] = tokens[:-1], tokens[-n:]
    return x, y


def _encode_endings(
    example: Example, encode: Callable[[str], Int[np.ndarray, " N"]], block_size: int
) -> Iterator[tuple[Int[np.ndarray, " N"], int]]:
    """Yield, for each ending, the tokens of context and ending together, and how many are the ending's."""
    try:
        # The space between the two is the ending's: byte pairs have a space at the beginning of a word.
        n_context = len(encode(example.context.rstrip()))
        for ending in example.endings:
            tokens = encode(f"{example.context} {ending}")
            n = len(tokens) - n_context
            if not 0 < n <= block_size:
                raise UserError(f"an ending has {n} tokens, the model predicts 1 to {block_size} at once")
            yield tokens[-(block_size + 1) :], n
    except UserError as error:
        raise UserError(f"{example.place}: {error}") from None


def accuracies(examples: list[Example], nats: Float[np.ndarray, " R"]) -> dict[str, float]:
    """Return the share of examples whose right ending is the likeliest, given -log p of each row's ending.

    `acc_norm`, which papers usually report, divides log p by the characters of the ending, as the harness
    does (`completion_len` in lm_eval/api/task.py).
    """
    right, row = [], 0
    for example in examples:
        ending_nats = nats[row : row + len(example.endings)]
        per_character = ending_nats / [len(ending) for ending in example.endings]
        right.append([np.argmin(x) == example.label for x in (ending_nats, per_character)])
        row += len(example.endings)
    acc, acc_norm = np.mean(right, axis=0)
    return {"acc": float(acc), "acc_norm": float(acc_norm)}
