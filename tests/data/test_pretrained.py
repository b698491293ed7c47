"""Tokenizers of folders are those of transformers: its tokens, which begin and end a text, and its errors."""

import json
import os

import pytest
import tokenizers
from transformers import AutoTokenizer

from common.errors import UserError
from data.dataset import Dataset, load_meta
from data.tokenizer import document_start, end_of_text, end_tokens, from_json, read_tokenizer, same_tokens
from data.writer import load_tokenizer
from hub.export import write_tokenizer
from tests.helpers import refusal, run_python
from tests.pretrained import END, START, TURN, V, library_tokenizer, prepare_texts, save_llama, save_tokenizer

TEXT = "the other wörld <s>[TURN] €\n\n"
DOCUMENTS = ["the story " * 400, "the", "a b"]


@pytest.fixture
def folder(tmp_path):
    save_llama(tmp_path / "llama")
    return tmp_path / "llama"


def prepared(folder, tokenizer, documents=DOCUMENTS):
    """The tokens that data/prepare.py writes, of both splits."""
    found = Dataset(str(prepare_texts(folder, tokenizer, documents)))
    return [found.tokens(split).ids.tolist() for split in ("train", "val")]


def test_a_prompt_is_that_of_transformers(folder):
    theirs, ours = AutoTokenizer.from_pretrained(folder), from_json(read_tokenizer(folder))
    for special in (True, False):
        expected = theirs(TEXT, add_special_tokens=special).input_ids
        assert ours.encode(TEXT, add_special_tokens=special).tolist() == expected
    assert expected[0] != START and START in expected  # in the text, its name means it


def test_the_ends_are_those_of_the_generation_config_or_else_of_the_config(folder):
    assert end_tokens(read_tokenizer(folder)) == [END, TURN]
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    for said, expected in ((TURN, [TURN]), ([TURN, END], [END, TURN]), (None, [END])):
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": said}))
        assert end_tokens(read_tokenizer(folder)) == expected
    assert end_of_text(read_tokenizer(folder)) == END  # of the tokenizer, whatever its name is


def test_tokens_of_other_names_are_no_obstacle(tmp_path):
    save_tokenizer(tmp_path, library_tokenizer(), extra_special_tokens={"foo": "<foo>"})
    assert read_tokenizer(tmp_path)["uses"]["special_tokens"].keys() >= {"bos_token", "eos_token"}


def test_a_template_that_leaves_the_first_token_out_goes_out_as_it_came_in(tmp_path):
    """As TinyLlama's: nothing was learned here that a token should begin."""
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}[TURN]{% endfor %}assistant:"
    save_tokenizer(tmp_path / "in", library_tokenizer(), chat_template=template)
    write_tokenizer(tmp_path / "out", read_tokenizer(tmp_path / "in"), 64)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.chat_template == template
    assert theirs.model_input_names == ["input_ids", "attention_mask"]  # transformers 4 would add another


@pytest.mark.skipif("TIKTOKEN_CACHE_DIR" not in os.environ, reason="needs tiktoken's files of GPT-2")
def test_gpt2s_vocabulary_with_a_space_before_each_text_is_no_gpt2(tmp_path):
    write_tokenizer(tmp_path, load_tokenizer("gpt2").description, 64)
    config = json.loads((path := tmp_path / "tokenizer_config.json").read_text())
    path.write_text(json.dumps(config | {"add_prefix_space": True}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).encode("Hello").tolist() == theirs.encode("Hello") == [18435]


def test_a_length_in_a_tokenizer_json_cuts_and_fills_nothing(tmp_path):
    library = library_tokenizer()
    long, short = (library.encode(text, add_special_tokens=False).ids for text in (DOCUMENTS[0], "the"))
    assert len(short) < 64 < len(long)
    library.enable_truncation(64)
    library.enable_padding(length=64)
    library.save(path := str(tmp_path / "cutting.json"))
    from_run = from_json({"type": "tokenizers", "json": library.to_str()})  # as earlier versions kept it
    for tokenizer in (load_tokenizer(path), from_run):
        assert [tokenizer.encode(text).tolist() for text in (DOCUMENTS[0], "the")] == [long, short]
    assert tokenizer.vocab_size == V


@pytest.mark.parametrize("template", ["<s> $A", None, "<s> $A [END]"])
def test_a_document_is_as_the_tokenizer_encodes_it_with_its_end_last(tmp_path, template):
    save_tokenizer(tmp_path, library_tokenizer(template))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    train, val = prepared(tmp_path, tmp_path)
    encoded = [theirs(text).input_ids for text in DOCUMENTS]
    expected = [ids if ids[-1] == END else [*ids, END] for ids in encoded]
    assert sorted(train + val) == sorted(sum(expected, []))
    stream = train + val
    for ids in expected:  # each document as a whole
        assert any(stream[i : i + len(ids)] == ids for i in range(len(stream)))
    meta = load_meta(str(tmp_path / "set"))
    assert document_start(meta.tokenizer) == (END if template is None else START)
    assert end_of_text(meta.tokenizer) == END


def test_a_vocabulary_with_its_merges_is_enough(tmp_path):
    library = json.loads(library_tokenizer().to_str())["model"]
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "vocab.json").write_text(json.dumps(library["vocab"] | {"<|endoftext|>": 264}))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in library["merges"]) + "\n")
    theirs, description = AutoTokenizer.from_pretrained(tmp_path), read_tokenizer(tmp_path)
    assert from_json(description).encode("the other").tolist() == theirs("the other").input_ids
    assert end_of_text(description) == theirs.eos_token_id == 264


@pytest.mark.skipif("TIKTOKEN_CACHE_DIR" not in os.environ, reason="needs tiktoken's files of GPT-2")
def test_openais_own_is_read_by_tiktoken(tmp_path):
    write_tokenizer(tmp_path, {"type": "tiktoken", "name": "gpt2"}, 1024)
    (tmp_path / "chat_template.jinja").write_text(template := "{{ messages }}")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [198, 50256]}))
    description = read_tokenizer(tmp_path)
    assert same_tokens(description, {"type": "tiktoken", "name": "gpt2"})
    assert end_tokens(description) == [50256, 198] and description["uses"]["chat_template"] == template


def test_a_text_that_cannot_be_encoded_is_one_line_and_a_document_is_left_out(tmp_path, capfd):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[END]": 2}))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.normalizer = tokenizers.normalizers.Replace("z", "")  # so that "z" has no token
    save_tokenizer(tmp_path, words, bos_token=None, pad_token=None, chat_template=None)
    with pytest.raises(UserError, match="the text 'a c' cannot be encoded .*UNK"):
        load_tokenizer(str(tmp_path)).encode("a c")
    train, val = prepared(tmp_path, tmp_path, ["a b", "c", *["a"] * 3, "b", "b a", "a a", "z"])
    assert sorted(train + val) == sorted([0, 1, 2, *[0, 2] * 3, 1, 2, 1, 0, 2, 0, 0, 2, 2])
    out, err = capfd.readouterr()
    assert "9 documents, 1 of them corrupt, empty or refused" in out
    assert "note: a document is left out: the text 'c' cannot be encoded" in err


@pytest.mark.parametrize(
    "name, content",
    [
        ("tokenizer.json", "[" * 10_000),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "null"),
        ("special_tokens_map.json", "[1]"),
        ("chat_template.jinja", "\udc80"),
        ("tokenizer_config.json", '{"auto_map":{"AutoTokenizer":["evil.T",null]},"tokenizer_class":"E"}'),
        ("generation_config.json", '{"eos_token_id": [[1]]}'),
        ("config.json", '{"model_type": ['),
    ],
)
def test_a_damaged_or_hostile_file_is_one_line_and_runs_nothing(folder, tmp_path, name, content):
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass T: pass\n")
    (folder / name).write_text(content, errors="surrogateescape")
    said = refusal(read_tokenizer, folder)
    named = "tokenizer.json" if "auto_map" in content else name
    assert said.startswith(f"{folder / named}: cannot be used (")
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_runs_on_characters_and_tiktoken_import_no_transformers():
    imports = "import sys, train, sample, evaluate, data.prepare, tools.serving.app; "
    done = run_python("-c", imports + "print('transformers' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("begins, template", [([START, TURN], "<s> [TURN] $A [END]"), ([], "$A [END]")])
def test_a_text_to_go_on_with_does_not_end_with_an_end_that_nobody_wrote(begins, template, tmp_path):
    library = library_tokenizer(template)
    tokenizer = load_tokenizer(str(save_tokenizer(tmp_path, library)))
    for text in ("", "the", "the[END]", "[END]"):
        plain = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens="before").tolist() == begins + plain
        shown = tokenizer.decode(begins + plain)  # of a text that is edited, as the page shows it
        assert tokenizer.encode(shown, add_special_tokens="before").tolist() == begins + plain
        assert tokenizer.encode(text, add_special_tokens=True).tolist() == [*begins, *plain, END]


def test_a_tokenizer_json_that_we_cannot_follow_is_refused(tmp_path):
    model = tokenizers.models.BPE({"a": 0, "a</w>": 1}, [], end_of_word_suffix="</w>")
    tokenizers.Tokenizer(model).save(path := str(tmp_path / "words.json"))
    assert "(a token with an end_of_word_suffix is not" in refusal(load_tokenizer, path)
    tokenizer = load_tokenizer(str(save_tokenizer(tmp_path, library_tokenizer())))
    said = refusal(tokenizer.encode, "the " * 10**7)  # a text for which the library would end the process
    assert "it has 40,000,000 characters, and 16,777,216 at most are read at once" in said


def test_dropout_changes_no_tokens(tmp_path):
    library = library_tokenizer()
    expected = library.encode(TEXT).ids
    library.model.dropout = 0.9
    tokenizer = load_tokenizer(str(save_tokenizer(tmp_path, library)))
    assert all(tokenizer.encode(TEXT, True, True).tolist() == expected for _ in range(10))


@pytest.mark.parametrize("uses", [{"document_start": V}, {"eos_token_id": [2, V]}])
def test_a_token_that_is_used_and_not_there_is_refused(uses):
    description = {"type": "tokenizers", "json": library_tokenizer().to_str(), "uses": uses}
    with pytest.raises(ValueError, match=f"token {V} is used, and there are {V} tokens"):
        from_json(description)
