"""HellaSwag: which of four endings follows a text about an everyday situation (arXiv:1905.07830).

    examples = read_examples("hellaswag_val.jsonl")     # from github.com/rowanz/hellaswag, 10,042 examples
    x, y = rows(examples, tokenizer.encode, block_size)
    accuracies(examples, nats)                          # of each row: -log p(its ending | its context)

The texts are cleaned up, joined and cut as in the task `hellaswag` of EleutherAI's lm-evaluation-harness
(version 0.4.13: lm_eval/tasks/hellaswag/utils.py, and `_encode_pair` in lm_eval/api/model.py), so that the
figures can stand beside published ones.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from config.command_line import UserError

# A row's length is rounded up to a multiple of this, which the kernels of accelerators like.
LENGTH_STEP = 64


class Example(NamedTuple):
    """A context, the endings to choose from, and which of them is right. Texts are cleaned up."""

    context: str
    endings: list[str]
    label: int
    place: str  # "file:line", for what is said about it


def read_examples(path: str) -> list[Example]:
    """The examples of a JSONL file, one JSON object per line. Raises UserError naming the file and line.

    An object has `endings`, `label` (the index of the right one) and either `activity_label`, `ctx_a` and
    `ctx_b`, as all of the official files have, or `ctx` alone, which is then the whole context.
    """
    examples, number = [], 0
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    examples.append(_example(json.loads(line), f"{path}:{number}"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{number}: not a JSON object ({error.msg}): correct or delete it") from None
    except (OSError, ValueError) as error:  # ValueError: it is not UTF-8
        raise UserError(f"--hellaswag={path}: cannot be read ({error}): give a JSONL file") from None
    if not examples:
        raise UserError(f"--hellaswag={path}: there is no example in it: give a JSONL file")
    return examples


def _example(fields: Any, place: str) -> Example:
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
    label = str(fields.get("label"))  # Hugging Face's copy has it as a string
    if label not in map(str, range(len(endings))):
        raise UserError(
            f"{place}: label is {label}, expected 0 to {len(endings) - 1}; the test set has none, "
            "take hellaswag_val.jsonl"
        )
    return Example(context, endings, int(label), place)


def clean(text: str) -> str:
    """The text without WikiHow's marks, such as [header] and [step], which many examples still have."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def rows(
    examples: list[Example], encode: Callable[[str], Int[np.ndarray, " N"]], block_size: int
) -> tuple[Int[np.ndarray, "R T"], Int[np.ndarray, "R T"]]:
    """What the model reads and is to predict, int32, a row for each ending of each example in turn.

    Targets are the tokens of the ending; those of the context and of the padding on the right are -1. Of a
    context and ending that are too long together, the beginning of the context is left out. T is what the
    longest row needs, so that all are computed by one compiled function. Raises UserError naming the line.
    """
    pairs = [pair for example in examples for pair in _encoded(example, encode, block_size)]
    longest = max(len(tokens) for tokens, _ in pairs) - 1
    T = min(block_size, -(-longest // LENGTH_STEP) * LENGTH_STEP)
    x, y = np.zeros((len(pairs), T), np.int32), np.full((len(pairs), T), -1, np.int32)
    for i, (tokens, n) in enumerate(pairs):
        end = len(tokens) - 1
        x[i, :end], y[i, end - n : end] = tokens[:-1], tokens[-n:]
    return x, y


def _encoded(example: Example, encode, block_size: int):
    """Of each ending: the tokens of context and ending, and how many of them are the ending's."""
    try:
        # The space between the two is the ending's, and so is any that the context ends with: byte pairs
        # have it at the beginning of a word.
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
    """The share of examples whose right ending is the likeliest, from -log p of each row's ending.

    `acc` compares the logs of the endings' probabilities, `acc_norm` those logs per character of the ending,
    as the harness does (`completion_len` in lm_eval/api/task.py); papers usually report the second.
    """
    likeliest, likeliest_per_character = [], []
    first = 0
    for example in examples:
        of_endings = nats[first : first + len(example.endings)]
        characters = [len(ending) for ending in example.endings]
        likeliest.append(np.argmin(of_endings) == example.label)
        likeliest_per_character.append(np.argmin(of_endings / characters) == example.label)
        first += len(example.endings)
    return {"acc": float(np.mean(likeliest)), "acc_norm": float(np.mean(likeliest_per_character))}
