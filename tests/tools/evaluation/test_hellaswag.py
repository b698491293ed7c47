"""HellaSwag's files and rows: texts and tokens as lm-evaluation-harness has them, and what counts as right.

What the rows score, and bad files, are in tests/test_evaluate.py.
"""

import json
import re

import numpy as np

from tools.evaluation.hellaswag import Example, accuracies, clean, read_examples, tokenize_examples

WORDS = ["<pad>", "A", " man", ".", " He", " sits", " ", " runs", " away", "!"]


def encode(text):
    """Byte pairs in small: a space belongs to the word behind it, and is a token where there is none."""
    return np.array([WORDS.index(word) for word in re.findall(r" ?[A-Za-z]+|[.!]| ", text)], np.int32)


def test_an_example_is_read_as_the_harness_reads_it(tmp_path):
    fields = {
        "activity_label": "Making tea",
        "ctx_a": "[header] How to make tea [title] Boil the water.",
        "ctx_b": "you",
        "ctx": "not this",
        "endings": ["[substeps] Wait  for it.", " pour [step] it out."],
        "label": 1,
    }
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(fields))
    (example,) = read_examples(str(path))
    assert example == Example(
        "Making tea: How to make tea. Boil the water. You", [" Wait for it.", "pour it out."], 1, f"{path}:1"
    )


def test_marks_are_cleaned_away_as_the_harness_does():
    """By `preprocess` of its version 0.4.13."""
    assert clean("[header] How to  cook [title] Buy eggs.   ") == " How to cook. Buy eggs."
    assert clean("  a [step] b  [substeps]  c") == "a b  c"


def test_a_row_reads_context_and_ending_and_predicts_the_ending():
    example = Example("A man. He", ["sits", "runs away!"], 0, "file:1")
    x, y = tokenize_examples([example], encode, block_size=100)
    assert x.shape == y.shape == (2, 64) and x.dtype == y.dtype == np.int32
    for row, ending in enumerate(([5], [7, 8, 9])):
        tokens = [1, 2, 3, 4, *ending]
        assert x[row, : len(tokens) - 1].tolist() == tokens[:-1]
        assert y[row, : len(tokens) - 1].tolist() == [-1, -1, -1, *ending]
    assert (y[0, 4:] == -1).all() and (y[1, 6:] == -1).all()


def test_a_space_behind_the_context_is_the_endings():
    x, y = tokenize_examples([Example("A man ", ["sits", "runs"], 0, "file:1")], encode, block_size=4)
    np.testing.assert_array_equal(x, [[1, 2, 6, 0]] * 2)
    np.testing.assert_array_equal(y, [[-1, 6, 5, -1], [-1, 6, 7, -1]])


def test_what_is_too_long_loses_the_beginning_of_its_context():
    example = Example("A man. He", ["sits.", "runs away!"], 0, "file:1")
    x, y = tokenize_examples([example], encode, block_size=3)
    np.testing.assert_array_equal(x, [[3, 4, 5], [4, 7, 8]])
    np.testing.assert_array_equal(y, [[-1, 5, 3], [7, 8, 9]])


def test_the_likeliest_ending_is_taken_as_a_whole_or_per_character():
    examples = [
        Example("a", ["12345678", "1234"], 1, "file:1"),
        Example("b", ["1", "12", "1234"], 2, "file:2"),
    ]
    nats = np.array([6.0, 4.0, 3.0, 4.0, 4.0])  # per character: 0.75, 1; 3, 2, 1
    assert accuracies(examples, nats) == {"acc": 0.5, "acc_norm": 0.5}
    assert accuracies(examples[:1], nats[:2]) == {"acc": 1.0, "acc_norm": 0.0}
    assert accuracies(examples[1:], nats[2:]) == {"acc": 0.0, "acc_norm": 1.0}
