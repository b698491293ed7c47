"""A trained tokenizer: transformers reads its folder, mistakes are one line."""

import json

import pytest
import transformers

from data.tokenizer import document_start, end_tokens, read_tokenizer
from data.train_tokenizer import main
from data.writer import load_tokenizer
from tests.helpers import refusal


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of 290 tokens, trained on a file of each kind that has a text."""
    there = tmp_path_factory.mktemp("tokenizer")
    (there / "a.txt").write_text("the cat sat on the mat\n<|endoftext|>\nthe rat sat on the cat naïve\n")
    (there / "b.jsonl").write_text(json.dumps({"text": "def the_cat(mat):\n    return mat + 1\n"}) + "\n")
    main([f"--source={there}/a.txt,{there}/b.jsonl", "--vocab_size=290", f"--to={there}/mine"])
    return there / "mine"


def test_transformers_reads_it_and_both_have_the_same_tokens(folder):
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(str(folder))
    assert ours.vocab_size == len(theirs) == 290
    for text in (" naïve 猫\n\t", "<|im_start|>user\nthe cat?<|im_end|>\n<|endoftext|>"):
        ids = ours.encode(text)
        assert ids.tolist() == theirs.encode(text) and ours.decode(ids) == text


def test_an_answer_ends_with_its_turn_and_a_document_with_end_of_text(folder):
    theirs, description = transformers.AutoTokenizer.from_pretrained(folder), read_tokenizer(folder)
    ids = theirs.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert end_tokens(description) == ids and document_start(description) == ids[0]
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id == ids


def test_it_prints_how_much_a_token_holds(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("cat sat " * 100)
    main([f"--source={tmp_path}/a.txt", f"--to={tmp_path}/mine", "--vocab_size=4096"])
    printed = capsys.readouterr()
    ids = load_tokenizer(str(tmp_path / "mine")).encode("cat sat " * 100)
    assert f"of the first document {800 / len(ids):.2f} bytes each" in printed.out
    assert "left to merge" in printed.err  # a small text has few pairs


@pytest.mark.parametrize(
    "words, says",
    [
        (["--vocab_size=300"], "--source=<files> and --to=<folder> are needed"),
        (["--source=none.txt", "--to=x"], "--source=none.txt: no such file"),
        (["--source={empty}", "--to=x"], "no documents"),
        (["--source={empty}", "--to={empty}"], "empty.txt is a file: give a folder"),
        (["--source={empty}", "--to=x", "--vocab_size=258"], "vocab_size"),
    ],
)
def test_a_mistake_is_one_line(words, says, tmp_path):
    (empty := tmp_path / "empty.txt").write_text("\n")
    assert says in refusal(main, [word.format(empty=empty) for word in words])
