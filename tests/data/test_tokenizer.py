"""Tokenizers: there and back, what they refuse, and text that streams."""

import sys

import numpy as np
import pytest

from config.options import UserError
from data.tokenizer import END_OF_TEXT, CharTokenizer, TiktokenTokenizer, end_of_text, from_json

tiktoken = pytest.importorskip("tiktoken")
TEXT = "héllo, wörld <|endoftext|> €😀"


@pytest.fixture
def byte_pairs(monkeypatch):
    """The real tiktoken, with an encoding that needs no download: a token per byte, end of text is 300."""
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": 300, "<|other|>": 301},
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: encoding)
    return TiktokenTokenizer("gpt2")


def test_characters_are_numbered_in_the_order_of_the_symbols():
    tokenizer = CharTokenizer("ba\n€")
    ids = tokenizer.encode("ab€\nb")
    assert ids.dtype == np.int32
    assert ids.tolist() == [1, 0, 3, 2, 0]
    assert tokenizer.decode(ids) == "ab€\nb"
    assert tokenizer.vocab_size == 4


def test_empty_text_is_no_tokens(byte_pairs):
    for tokenizer in (CharTokenizer("ab"), byte_pairs):
        assert tokenizer.encode("").shape == (0,)
        assert tokenizer.encode("").dtype == np.int32
        assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("character", ["é", "A", "\x00", "\U0001f600", "\udcff"])
def test_a_character_outside_the_vocabulary_is_named(character):
    with pytest.raises(UserError) as error:
        CharTokenizer("bc").encode(f"bc{character}b")
    assert repr(character) in str(error.value)
    assert repr("b") not in str(error.value)


def test_many_missing_characters_are_cut_short():
    with pytest.raises(UserError, match="and 16 more"):
        CharTokenizer("A").encode("abcdefghijklmnopqrstuvwxyz")


@pytest.mark.parametrize("symbols", ["", "aba"])
def test_symbols_must_be_there_and_differ(symbols):
    with pytest.raises(UserError):
        CharTokenizer(symbols)


def test_byte_pairs_there_and_back(byte_pairs):
    ids = byte_pairs.encode(TEXT)
    assert ids.dtype == np.int32
    assert 300 in ids  # the end of text is one token
    assert byte_pairs.decode(ids) == TEXT
    assert byte_pairs.vocab_size == 302
    assert byte_pairs.decode(byte_pairs.encode("<|other|>")) == "<|other|>"
    assert 301 not in byte_pairs.encode("<|other|>")


def test_streamed_text_is_the_decoded_text_and_never_half_a_character(byte_pairs):
    for tokenizer in (CharTokenizer("".join(sorted(set(TEXT)))), byte_pairs):
        feed = tokenizer.stream()
        pieces = [feed([i]) for i in tokenizer.encode(TEXT)]
        assert "".join(pieces) == TEXT
        assert feed([], final=True) == ""


def test_a_stream_that_ends_inside_a_character_says_so_at_the_end(byte_pairs):
    feed = byte_pairs.stream()
    assert feed("€".encode()[:2]) == ""
    assert feed([], final=True) == "\ufffd"


def test_a_padding_token_is_shown_as_unknown(byte_pairs):
    assert byte_pairs.decode([ord("a"), 50303, ord("b")]) == "a\ufffdb"


def test_json_there_and_back(byte_pairs):
    assert from_json(CharTokenizer("xy").to_json()).symbols == "xy"
    assert CharTokenizer("xy").to_json() == {"type": "char", "symbols": "xy"}
    assert byte_pairs.to_json() == {"type": "tiktoken", "name": "gpt2"}
    assert from_json(byte_pairs.to_json()).encode("hi").tolist() == [104, 105]


@pytest.mark.parametrize(
    "description",
    [None, {}, "char", {"type": "char"}, {"type": "char", "symbols": 3}, {"type": "word", "name": "x"}],
)
def test_an_unknown_description_is_refused(description):
    with pytest.raises(UserError, match="unknown tokenizer"):
        from_json(description)


def test_end_of_text_is_tiktokens_and_needs_no_files(monkeypatch):
    from tiktoken_ext import openai_public

    for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(openai_public, loader, lambda *files, **hashes: {})
    for name in END_OF_TEXT:
        expected = openai_public.ENCODING_CONSTRUCTORS[name]()["special_tokens"]["<|endoftext|>"]
        assert end_of_text({"type": "tiktoken", "name": name}) == expected
    assert {"gpt2", "cl100k_base", "o200k_base"} <= END_OF_TEXT.keys()


@pytest.mark.parametrize(
    "description", [None, {"type": "char", "symbols": "ab"}, {"type": "tiktoken", "name": "x"}]
)
def test_where_there_is_no_end_of_text(description):
    assert end_of_text(description) is None


def test_an_unknown_encoding_is_refused():
    with pytest.raises(UserError, match="gpt-2.*choose one of .*gpt2"):
        TiktokenTokenizer("gpt-2")


def test_offline_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens on this port
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="TIKTOKEN_CACHE_DIR"):
        TiktokenTokenizer("gpt2")


def test_without_tiktoken_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)  # makes `import tiktoken` fail
    with pytest.raises(UserError, match="pip install tiktoken"):
        TiktokenTokenizer("gpt2")
