"""Tokens to text: parts that are whole characters without the stop string."""

from types import SimpleNamespace

import pytest

from data.writer import load_tokenizer
from tools.serving.completions import Completion
from tools.serving.text import Continuation, Token, read_prompt

TEXT = "the é€🙂 brown\n"


@pytest.fixture
def tokenizer(tokenizer_json):
    return load_tokenizer(str(tokenizer_json))


def test_each_part_is_whole_characters(tokenizer):
    ids = tokenizer.encode(TEXT)
    text = Continuation(tokenizer, ids[:0])
    parts = []
    for i in range(len(ids)):
        text.add(ids[i : i + 1])
        parts.append(text.to_send()[0])
    assert "".join(parts) == TEXT and text.count == len(ids)
    text.finish("length")
    assert text.to_send() == ("", [])


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    "stop, left", [("€🙂", "the é"), ("he", "t"), ("brown\n", "the é€🙂 "), ("x", TEXT), ("\nA", TEXT)]
)
def test_nothing_of_a_stop_string_is_sent(tokenizer, size, stop, left):
    """However many tokens come at once; what only looks like its beginning is sent later."""
    ids = tokenizer.encode(TEXT)
    text, sent, tokens = Continuation(tokenizer, ids[:0], [stop, "never"]), "", []
    for i in range(0, len(ids), size):
        text.add(ids[i : i + size])
        part, made = text.to_send()
        sent, tokens = sent + part, tokens + made
        assert left.startswith(sent)
        if text.finish_reason:
            break
    else:
        text.finish("length")
    part, made = text.to_send()
    sent, tokens = sent + part, tokens + made
    assert sent == left and text.finish_reason == ("length" if left == TEXT else "stop")
    assert [token.id for token in tokens] == ids[: len(tokens)].tolist()
    assert all(token.start < len(left) for token in tokens)


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
