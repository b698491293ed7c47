"""HellaSwag: choose which of four endings follows a text about an everyday situation (arXiv:1905.07830).

    examples = read_examples("hellaswag_val.jsonl")     # from github.com/rowanz/hellaswag, 10,042 examples
    x, y = tokenize_examples(examples, tokenizer.encode, block_size)
    accuracies(examples, nats)                          # nats of a row: -log p(its ending | its context)

The texts are cleaned up, joined and shortened as in the task `hellaswag` of EleutherAI's
lm-evaluation-harness (version 0.4.13: lm_eval/tasks/hellaswag/utils.py, and `_encode_pair` in
lm_eval/api/model.py), so that the figures can be compared with published ones.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from config.command_line import UserError, spell
from config.files import parse_json

# A row's length is rounded up to a multiple of this, because the kernels of accelerators are faster then.
LENGTH_STEP = 64


class Example(NamedTuple):
    """A context, the endings to choose from, and which of them is right. The texts are cleaned up."""

    context: str
    endings: list[str]
    label: int  # the index of the right ending
    place: str  # "file:line", which errors name


def read_examples(path: str) -> list[Example]:
    """Read the examples of a JSONL file, one JSON object per line.

    An object has `endings`, `label` (the index of the right one) and either `activity_label`, `ctx_a` and
    `ctx_b`, as all of the official files have, or `ctx` alone, which is then the whole context. Raises
    UserError, naming the file and line.
    """
    examples = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    examples.append(_parse_example(line, f"{path}:{number}"))
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
            context = clean(f"{activity}: {a} {b.capitalize()}")
        case {"ctx": str(text)}:
            context = clean(text)
        case _:
            raise UserError(
                f"{place}: no context: expected ctx, or activity_label, ctx_a and ctx_b, as texts"
            )
    if not context:
        raise UserError(f"{place}: the context is empty: delete the line")
    match fields.get("endings"):
        case [str(), str(), *rest] as endings if all(isinstance(ending, str) for ending in rest):
            endings = [clean(ending) for ending in endings]
        case _:
            raise UserError(f"{place}: endings must be two texts or more")
    if not all(ending.strip() for ending in endings):
        raise UserError(f"{place}: an ending is empty: delete the line")
    label = fields.get("label")
    label = str(label) if isinstance(label, int | str) else spell(label)  # a string in Hugging Face's copy
    if label not in map(str, range(len(endings))):
        raise UserError(
            f"{place}: label is {label}, expected 0 to {len(endings) - 1}; the test set has none, "
            "take hellaswag_val.jsonl"
        )
    return Example(context, endings, int(label), place)


def clean(text: str) -> str:
    """Remove WikiHow's marks, such as [header] and [step], which many examples still have."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def tokenize_examples(
    examples: list[Example], encode: Callable[[str], Int[np.ndarray, " N"]], block_size: int
) -> tuple[Int[np.ndarray, "R T"], Int[np.ndarray, "R T"]]:
    """Return inputs and targets, int32: a row for each ending of each example in turn.

    The targets are the tokens of the ending; for the context, and for the padding on the right, they are -1.
    If a context and its ending are too long together, the beginning of the context is left out. All rows are
    as long as the longest needs, so that one compiled function computes all. Raises UserError, naming the
    line, for an ending that is too long.
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
        # The space between the two counts with the ending, and so does any at the end of the context: byte
        # pairs have a space at the beginning of a word.
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

    `acc` compares the logs of the endings' probabilities, `acc_norm` those logs per character of the ending,
    as the harness does (`completion_len` in lm_eval/api/task.py). Papers usually report `acc_norm`.
    """
    right, right_per_character = [], []
    row = 0
    for example in examples:
        ending_nats = nats[row : row + len(example.endings)]
        characters = [len(ending) for ending in example.endings]
        right.append(np.argmin(ending_nats) == example.label)
        right_per_character.append(np.argmin(ending_nats / characters) == example.label)
        row += len(example.endings)
    return {"acc": float(np.mean(right)), "acc_norm": float(np.mean(right_per_character))}
