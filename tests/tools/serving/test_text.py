"""Tokens to text: parts that are whole characters without the stop string."""

from types import SimpleNamespace

import numpy as np
import pytest

from data.writer import load_tokenizer
from tools.serving.completions import Completion
from tools.serving.text import Continuation, Token, read_prompt


@pytest.fixture
def tokenizer(tokenizer_json):
    return load_tokenizer(str(tokenizer_json))


def test_what_only_looks_like_the_beginning_of_a_stop_string_is_sent_later(tokenizer):
    text, parts = Continuation(tokenizer, np.empty(0, np.int32), ["€🙂", "\nA"]), []
    for token in tokenizer.encode("the é€ brown\n"):
        text.add(np.array([token]))
        parts.append(text.to_send()[0])
        assert "".join(parts) == text.text[:-1]
    text.finish("length")
    assert "".join(parts) + text.to_send()[0] == "the é€ brown\n"


def test_a_prompt_that_ends_inside_a_character_is_completed(tokenizer):
    ids = tokenizer.encode("€")
    assert len(ids) == 3
    text = Continuation(tokenizer, ids[:2])
    text.add(ids[2:])
    assert text.text == "€"


def test_an_echo_is_the_prompt_as_it_was_written(sentencepiece):
    for prompt in ("Hi Hi", "iH€"):
        ids = sentencepiece.encode(prompt, add_special_tokens="before")
        text, tokens = read_prompt(sentencepiece, ids, echo=True)
        assert text == prompt and [token.id for token in tokens] == ids.tolist()
    assert read_prompt(sentencepiece, ids)[0] == "<s> iH€"  # as a look inside shows its tokens


def test_of_alternatives_with_the_same_text_the_likeliest_is_told():
    answer = Completion.__new__(Completion)
    answer.served = SimpleNamespace(tokenizer=SimpleNamespace(bytes_of=lambda i: b"b" if i == 2 else b"a"))
    told = answer.top(Token(3, 0, 1, -3.0, [(0, -0.5), (1, -1.0), (2, -2.0)]), 3)
    assert told == {"a": -0.5, "b": -2.0}
