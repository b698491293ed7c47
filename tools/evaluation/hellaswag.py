"""HellaSwag: choose which of four endings follows a text about an everyday situation (arXiv:1905.07830).

Texts are cleaned, joined and shortened as in lm-evaluation-harness 0.4.13 (lm_eval/tasks/hellaswag/utils.py,
`_encode_pair` in lm_eval/api/model.py), so that the figures can be compared with published ones.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from config.command_line import UserError
from config.files import parse_json

LENGTH_STEP = 64  # rows are as long as a multiple of this, which suits the kernels of accelerators


class Example(NamedTuple):
    """A context, the endings to choose from, and which of them is right. The texts are cleaned up."""

    context: str
    endings: list[str]
    label: int  # the index of the right ending
    place: str  # "file:line", which errors name


def read_examples(path: str) -> list[Example]:
    """Read a JSONL file, such as github.com/rowanz/hellaswag has. Raises UserError, naming the line.

    In place of `activity_label`, `ctx_a` and `ctx_b` a line may have `ctx`, which is then all of the context.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:  # ValueError: it is not UTF-8
        raise UserError(f"--hellaswag={path}: cannot be read ({error}): give a JSONL file") from None
    examples = [parse_example(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not examples:
        raise UserError(f"--hellaswag={path}: there is no example in it: give a JSONL file")
    return examples


def parse_example(line: str, place: str) -> Example:
    try:
        fields = parse_json(line)
        if "activity_label" in fields:
            context = f"{fields['activity_label']}: {fields['ctx_a']} {fields['ctx_b'].capitalize()}"
        else:
            context = fields["ctx"]
        context, *endings = map(clean, [context, *fields["endings"]])
        label = int(fields["label"])  # it is a string in Hugging Face's copy
        if not 0 <= label < len(endings):
            raise ValueError(f"its label is {label}, and it has {len(endings)} endings")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"{place}: no example of HellaSwag ({why}): correct or delete it") from None
    return Example(context, endings, label, place)


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
    rows = []  # the tokens of context and ending together, and how many are the ending's
    for example in examples:
        try:
            # The space between the two is the ending's: byte pairs have a space at the beginning of a word.
            n_context = len(encode(example.context.rstrip()))
            for ending in example.endings:
                tokens = encode(f"{example.context} {ending}")
                n = len(tokens) - n_context
                if not 0 < n <= block_size:
                    raise UserError(f"an ending has {n} tokens, the model predicts 1 to {block_size} at once")
                rows.append((tokens[-(block_size + 1) :], n))
        except UserError as error:
            raise UserError(f"{example.place}: {error}") from None
    longest = max(len(tokens) for tokens, _ in rows) - 1
    T = min(block_size, -(-longest // LENGTH_STEP) * LENGTH_STEP)
    x, y = np.zeros((len(rows), T), np.int32), np.full((len(rows), T), -1, np.int32)
    for i, (tokens, n) in enumerate(rows):
        end = len(tokens) - 1
        x[i, :end], y[i, end - n : end] = tokens[:-1], tokens[-n:]
    return x, y


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
