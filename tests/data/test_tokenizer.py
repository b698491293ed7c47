"""Tokenizers: there and back, what they refuse, and text that streams."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import requests
import tiktoken

from common.errors import UserError
from data.tokenizer import (
    END_OF_TEXT,
    CharTokenizer,
    TiktokenTokenizer,
    check_description,
    end_of_text,
    from_json,
)
from data.writer import load_tokenizer
from tests.helpers import refusal

TEXT = "héllo, wörld <|endoftext|> €😀"


@pytest.fixture
def byte_level(tokenizer_json):
    return load_tokenizer(str(tokenizer_json))


@pytest.fixture(params=["characters", "byte_pairs", "byte_level"])
def tokenizer(request):
    if request.param == "characters":
        return CharTokenizer("".join(sorted(set(TEXT))))
    return request.getfixturevalue(request.param)


def test_text_there_and_back(tokenizer):
    described = json.loads(json.dumps(tokenizer.description))
    assert check_description(described | {"more": [[[]]]}) == described
    for one in (tokenizer, from_json(described)):
        for text in (TEXT, ""):
            ids = one.encode(text)
            assert ids.dtype == np.int32 and ids.ndim == 1 and (ids < one.vocab_size).all()
            assert one.decode(ids) == text
            assert ids.tolist() == tokenizer.encode(text).tolist()


def test_streamed_text_is_the_decoded_text_and_never_half_a_character(tokenizer):
    feed = tokenizer.stream()
    pieces = [feed([i]) for i in tokenizer.encode(TEXT)]
    assert "".join(pieces) == TEXT and "\ufffd" not in pieces
    assert feed([], final=True) == ""
    for seed in range(50):  # an untrained model draws any bytes in any order
        ids = np.random.default_rng(seed).integers(256, size=60)
        feed = tokenizer.stream()
        assert "".join(feed([i]) for i in ids) + feed([], final=True) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_pairs", "byte_level"])
def test_end_of_text_is_a_token_in_a_prompt_and_text_in_a_document(request, kind):
    tokenizer = request.getfixturevalue(kind)
    eot = 50256 if kind == "byte_pairs" else 0
    for _ in range(2):  # neither spoils the other
        assert tokenizer.encode("a<|endoftext|>").tolist()[1:] == [eot]
        ordinary = tokenizer.encode("a<|endoftext|>", special=False)
        assert eot not in ordinary and tokenizer.decode(ordinary) == "a<|endoftext|>"
    with pytest.raises(UserError, match="cannot be encoded .*surrogates not allowed"):
        tokenizer.encode("a\udcff")  # half a character, which a library would make a question mark of


def test_an_id_of_a_padded_vocabulary_is_no_token(byte_pairs, byte_level):
    assert byte_pairs.decode([ord("a"), 50303, ord("b")]) == "a\ufffdb"
    assert CharTokenizer("ab").decode([0, 2, 1]) == "a\ufffdb"
    a, b = byte_level.encode("ab")
    assert byte_level.decode([a, 50303, b]) == byte_level.stream()([a, 50303, b], final=True) == "ab"


def test_a_character_outside_the_vocabulary_is_named():
    with pytest.raises(UserError) as error:
        CharTokenizer("bc").encode("bcéb")
    assert "lacks 'é'" in str(error.value)
    for symbols in ("", "aba", "a\ud800"):  # they must be there, valid and different
        with pytest.raises(ValueError, match="valid characters"):
            CharTokenizer(symbols)


def test_of_tiktokens_special_tokens_only_end_of_text_is_known(byte_pairs):
    assert byte_pairs.description == {"type": "tiktoken", "name": "gpt2"} and byte_pairs.vocab_size == 50258
    assert byte_pairs.decode(byte_pairs.encode("<|other|>")) == "<|other|>"
    assert 50257 not in byte_pairs.encode("<|other|>")


def test_end_of_text_is_tiktokens_and_needs_no_files(monkeypatch):
    from tiktoken_ext import openai_public

    for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(openai_public, loader, lambda *files, **hashes: {})
    for name in END_OF_TEXT:
        expected = openai_public.ENCODING_CONSTRUCTORS[name]()["special_tokens"]["<|endoftext|>"]
        assert end_of_text({"type": "tiktoken", "name": name}) == expected
    assert {"gpt2", "cl100k_base", "o200k_base"} <= END_OF_TEXT.keys()
    for description in (None, CharTokenizer("ab").description, {"type": "tiktoken", "name": "x"}):
        assert end_of_text(description) is None


def test_an_encoding_that_is_unknown_or_offline_says_what_to_do(monkeypatch):
    with pytest.raises(UserError, match="'gpt-2'.*choose a tokenizer.json"):
        TiktokenTokenizer("gpt-2")
    monkeypatch.setattr(tiktoken, "get_encoding", Mock(side_effect=requests.ConnectionError("no route")))
    with pytest.raises(UserError, match=r"\(no route\).*TIKTOKEN_CACHE_DIR"):
        TiktokenTokenizer("gpt2")


def test_end_of_text_has_other_names(tokenizer_json):
    for name in ("<|end_of_text|>", "<eos>"):
        text = tokenizer_json.read_text().replace("<|endoftext|>", name)
        assert end_of_text({"type": "tokenizers", "json": text}) == 0


def test_a_missing_tokenizer_json_is_named(tmp_path):
    """Damaged ones: test_pretrained.py."""
    said = refusal(load_tokenizer, str(tmp_path / "tokenizer.json"))
    assert "tokenizer.json: there is no tokenizer.json" in said


@pytest.mark.parametrize(
    "description",
    [
        *({}, "gpt2", {"type": "char", "symbols": ["a"]}, {"type": ["char"], "symbols": "a"}),
        *({"type": "tiktoken", "name": 3}, {"type": "tokenizers", "json": None}),
        *({"type": "tiktoken", "name": "gpt2", "uses": uses} for uses in (3, {"eos_token_id": 1})),
        {"type": "tiktoken", "name": "gpt2", "uses": {"special_tokens": {"tokenizer_file": "/etc/passwd"}}},
        *({"type": "tokenizers", "json": text} for text in ("[]", "[" * 10_000)),
    ],
)
def test_a_description_that_no_tokenizer_gave_is_refused(description):
    assert check_description(None) is None
    with pytest.raises(ValueError):
        check_description(description)
