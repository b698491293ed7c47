"""Tokenizers: there and back, what they refuse, and text that streams."""

import json

import numpy as np
import pytest

from config.command_line import UserError
from data.tokenizer import (
    END_OF_TEXT,
    CharTokenizer,
    TiktokenTokenizer,
    check_description,
    end_of_text,
    from_json,
)
from data.writer import load_tokenizer
from tests.damage import answers

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


@pytest.mark.parametrize("symbols", ["", "aba", "a\ud800"])
def test_symbols_must_be_there_valid_and_differ(symbols):
    with pytest.raises(ValueError, match="valid characters"):
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


def test_an_unknown_id_is_shown_as_unknown(byte_pairs):
    assert byte_pairs.decode([ord("a"), 50303, ord("b")]) == "a\ufffdb"
    assert CharTokenizer("ab").decode([0, 2, 1]) == "a\ufffdb"


def test_json_there_and_back(byte_pairs):
    assert from_json(CharTokenizer("xy").to_json()).symbols == "xy"
    assert CharTokenizer("xy").to_json() == {"type": "char", "symbols": "xy"}
    assert byte_pairs.to_json() == {"type": "tiktoken", "name": "gpt2"}
    assert from_json(byte_pairs.to_json()).encode("hi").tolist() == [104, 105]


def test_end_of_text_is_tiktokens_and_needs_no_files(monkeypatch):
    from tiktoken_ext import openai_public

    for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(openai_public, loader, lambda *files, **hashes: {})
    for name in END_OF_TEXT:
        expected = openai_public.ENCODING_CONSTRUCTORS[name]()["special_tokens"]["<|endoftext|>"]
        assert end_of_text({"type": "tiktoken", "name": name}) == expected
    assert {"gpt2", "cl100k_base", "o200k_base"} <= END_OF_TEXT.keys()


def test_where_there_is_no_end_of_text():
    for description in (None, CharTokenizer("ab").to_json(), {"type": "tiktoken", "name": "x"}):
        assert end_of_text(description) is None


def test_an_unknown_encoding_is_refused():
    with pytest.raises(UserError, match="'gpt-2'.*choose a tokenizer.json or one of .*gpt2, "):
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


# A Hugging Face tokenizer.json


def test_a_tokenizer_json_there_and_back(tokenizer_json):
    tokenizer = load_tokenizer(str(tokenizer_json))
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.vocab_size == 260 and ids.max() < 260
    assert len(tokenizer.encode("the theory")) == 1 + 1 + 3  # "the", " the", "o", "r", "y"
    assert tokenizer.encode("").shape == (0,) and tokenizer.decode([]) == ""


def test_end_of_text_is_a_token_in_a_prompt_and_text_in_a_document(tokenizer_json):
    tokenizer = load_tokenizer(str(tokenizer_json))
    eot = end_of_text(tokenizer.to_json())
    for _ in range(2):  # neither spoils the other
        assert tokenizer.encode("a<|endoftext|>").tolist()[1:] == [eot]
        ordinary = tokenizer.encode("a<|endoftext|>", special=False)
        assert eot not in ordinary and tokenizer.decode(ordinary) == "a<|endoftext|>"


def test_tiktokens_ordinary_text_has_no_special_tokens(byte_pairs):
    ids = byte_pairs.encode(TEXT, special=False)
    assert 300 not in ids
    assert byte_pairs.decode(ids) == TEXT


def test_a_tokenizer_json_lives_on_in_its_description(tokenizer_json, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json.read_text())
    described = json.loads(json.dumps(load_tokenizer(str(path)).to_json()))
    path.unlink()
    again = from_json(described)
    assert again.encode(TEXT).tolist() == load_tokenizer(str(tokenizer_json)).encode(TEXT).tolist()
    assert again.decode(again.encode(TEXT)) == TEXT
    assert end_of_text(described) == 0


def test_a_tokenizer_json_streams_what_it_decodes(tokenizer_json):
    tokenizer = load_tokenizer(str(tokenizer_json))
    feed = tokenizer.stream()
    euro = tokenizer.encode("€")
    assert len(euro) == 3
    assert [feed([i]) for i in euro] == ["", "", "€"]
    assert (feed(euro[:2]), feed([], final=True)) == ("", "\ufffd")
    for seed in range(50):  # an untrained model draws any bytes in any order
        ids = np.random.default_rng(seed).integers(tokenizer.vocab_size, size=60)
        feed = tokenizer.stream()
        assert "".join(feed([i]) for i in ids) + feed([], final=True) == tokenizer.decode(ids)


def test_a_padding_token_of_a_tokenizer_json_is_no_text(tokenizer_json):
    tokenizer = load_tokenizer(str(tokenizer_json))
    a, b = tokenizer.encode("ab")
    assert tokenizer.decode([a, 50303, b]) == tokenizer.stream()([a, 50303, b], final=True) == "ab"


def test_half_a_character_in_a_prompt_is_no_traceback(tokenizer_json):
    assert load_tokenizer(str(tokenizer_json)).encode("a\udcff").tolist()


@pytest.mark.parametrize("name", ["<|end_of_text|>", "</s>", "<eos>"])
def test_end_of_text_has_other_names(tokenizer_json, name):
    text = tokenizer_json.read_text().replace("<|endoftext|>", name)
    assert end_of_text({"type": "tokenizers", "json": text}) == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "X"}}'])
def test_a_garbled_tokenizer_json_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.json: "):
        load_tokenizer(str(path))


def test_any_damage_to_a_tokenizer_json_is_one_line(tokenizer_json, tmp_path):
    path = tmp_path / "tokenizer.json"
    values = json.loads(tokenizer_json.read_text())
    values["model"]["vocab"] = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}
    path.write_text(json.dumps(values | {"model": values["model"] | {"merges": [["a", "b"]]}}))

    def read():
        tokenizer = load_tokenizer(str(path))
        end_of_text(tokenizer.to_json())
        tokenizer.decode(tokenizer.encode("ab<|endoftext|>"))

    said = answers(path, read)
    assert all(line is None or line.startswith(f"{path}: ") for line in said.values())
    assert {what for what in said if what.endswith((" instead", "empty", "half"))} <= {
        what for what, line in said.items() if line is not None
    }


@pytest.mark.parametrize(
    "description",
    [
        *({}, [], "gpt2", {"type": "char"}, {"type": "word", "name": "x"}),
        *({"type": "char", "symbols": ["a"]}, {"type": ["char"], "symbols": "a"}),
        *({"type": "tiktoken", "name": 3}, {"type": "tokenizers", "json": None}),
        *({"type": "tokenizers", "json": text} for text in ("", "[]", "[" * 10_000, '{"added_tokens": [3]}')),
        {"type": "tokenizers", "json": '{"added_tokens": [{"content": "</s>", "id": true}]}'},
        {"type": "tokenizers", "json": '{"added_tokens": [{"content": "</s>", "id": -1}]}'},
    ],
)
def test_a_description_that_no_tokenizer_gave_is_refused(description):
    with pytest.raises(ValueError):
        check_description(description)


def test_a_description_is_kept_without_what_is_not_its_own():
    described = CharTokenizer("ab").to_json()
    assert check_description(described | {"more": [[[]]]}) == described and check_description(None) is None


def test_a_missing_tokenizer_json_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: cannot be read"):
        load_tokenizer(str(tmp_path / "none.json"))
