"""evaluate.py as its user meets it: its figures are those of `transformers`, token by token, on any mesh.

The run that is evaluated is made here: the random weights of a small GPT-2 of `transformers`, saved as
train.py saves a model.
"""

import json
import math
import os
import shutil
import string
from dataclasses import replace

import equinox as eqx
import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

import evaluate
from config.options import Options
from data.dataset import Dataset
from data.prepare import prepare
from data.spans import document_bytes
from data.tokenizer import CharTokenizer, from_json
from data.writer import write_dataset, write_text
from runs.checkpoint import Manifest
from tests.helpers import FLOAT32_ROUNDING, refusal, save_run
from tests.pretrained import library_tokenizer, save_tokenizer
from tests.reference import CONFIGS, as_gpt, random_reference
from training.state import create_state, model_config

SYMBOLS = string.ascii_letters + "0123456 .:é€😀"  # 65, of 1 to 4 bytes
TOKENIZER = CharTokenizer(SYMBOLS)
V, T, N_VAL = 65, CONFIGS["gpt2"].block_size, 200


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Random characters: 100 for training and 200 for validation."""
    folder = tmp_path_factory.mktemp("data") / "random"
    ids = np.random.default_rng(0).integers(V, size=100 + N_VAL)
    write_dataset(folder, ids[:100], ids[100:], TOKENIZER, "a test")
    return folder


@pytest.fixture(scope="module")
def reference():
    return random_reference("gpt2")


@pytest.fixture(scope="module")
def run(reference, dataset, tmp_path_factory):
    """A run's folder whose one checkpoint has the reference's weights."""
    return save_reference(tmp_path_factory.mktemp("runs") / "gpt2", reference, dataset, TOKENIZER.description)


def save_reference(folder, reference, dataset, tokenizer):
    options = replace(Options(), out_dir=str(folder), dataset=str(dataset), mlp="gelu", bias=True)
    options = replace(options, n_layer=3, n_head=4, n_embd=48, block_size=T, device="cpu")
    state = create_state(model_config(options, V), options)
    state = eqx.tree_at(lambda state: state.model, state, as_gpt("gpt2", dict(reference.named_parameters())))
    learned = Dataset(str(dataset)).meta.sha256
    return save_run(folder, state, Manifest(options, V, tokenizer, sha256=learned))


@pytest.fixture
def result(run, tmp_path):
    """`result(stride=..., ...)` runs evaluate.py's main with these options and returns what it writes."""

    def write(**options):
        path = tmp_path / "new" / "result.json"
        options = {"out_dir": run, "mesh": "data:1", "device": "cpu", "json": path} | options
        evaluate.main([f"--{name}={value}" for name, value in options.items()])
        return json.loads(path.read_text())

    return write


def error(*argv):
    """The one line that a command line ends in."""
    return refusal(evaluate.main, ["--device=cpu", "--mesh=data:1", *argv])


def log_probabilities(reference, tokens):
    """Of each token of the vocabulary to come next, after each of the tokens (B, N): (B, N, V)."""
    with torch.no_grad():
        return torch.log_softmax(reference(torch.tensor(tokens)).logits, -1).numpy()


# --- the loss of a split ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nats_of_token(reference, dataset):
    """`nats_of_token(begin, i)` is -log p of token i of val.bin, given those from `begin` on."""
    tokens = np.fromfile(dataset / "val.bin", "<u2").astype(np.int64)
    begins = np.arange(N_VAL)[:, None]
    tables = log_probabilities(reference, tokens[np.minimum(begins + np.arange(T), N_VAL - 1)])
    return lambda begin, i: -tables[begin, i - 1 - begin, tokens[i]]


@pytest.mark.parametrize("size, stride", [(T, 1), (T, None), (7, 3), (1, None)])
def test_the_loss_is_that_of_each_token_from_its_own_context(result, nats_of_token, size, stride):
    found = result(block_size=size, stride=stride)
    stride = stride or max(1, size // 2)
    nats = 0.0
    for i in range(1, N_VAL):
        begin = 0
        while i > begin + size:  # beyond this window: the next begins a stride later
            begin += stride
        assert begin == 0 or i - begin > size - stride  # so much context is promised
        nats += nats_of_token(begin, i)

    assert found["tokens"] == N_VAL - 1
    assert found["loss"] == pytest.approx(nats / (N_VAL - 1), rel=FLOAT32_ROUNDING)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


@pytest.mark.parametrize("option", ["mesh=data:2,fsdp:2,tensor:2", "batch_size=3", "batch_size=100"])
def test_neither_the_mesh_nor_the_batch_changes_anything(result, option):
    name, _, value = option.partition("=")
    assert result(**{name: value})["loss"] == pytest.approx(result()["loss"], rel=FLOAT32_ROUNDING)


def test_what_it_says_is_what_it_writes(result, dataset, capsys):
    found = result(split="train", stride=4)
    loss, counted = capsys.readouterr().out.splitlines()
    assert loss == (
        f"{dataset}, train: loss {found['loss']:.4f} nats per token, perplexity {found['perplexity']:.4f}, "
        f"{found['bits_per_byte']:.4f} bits per byte"
    )
    assert counted.startswith("99 tokens, in windows of 16 that begin 4 apart, ")


# --- bits per byte ----------------------------------------------------------------------------------------


def test_bits_per_byte_counts_the_bytes_of_characters(result, tmp_path):
    text = "a é€😀" * 10
    write_dataset(tmp_path / "bytes", [0] * 20, TOKENIZER.encode(text), TOKENIZER, "a test")
    found = result(dataset=tmp_path / "bytes")
    n_bytes = 10 * (1 + 1 + 2 + 3 + 4) - 1  # the first character is read, not predicted
    assert (found["tokens"], found["bytes"]) == (49, n_bytes)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * 49 / math.log(2) / n_bytes)


def test_a_character_of_several_tokens_counts_once_and_end_of_text_is_no_text(byte_pairs):
    targets = byte_pairs.encode("é€<|endoftext|>😀!")
    assert len(targets) == 2 + 3 + 1 + 4 + 1
    found = document_bytes(targets, byte_pairs.description)
    assert b"".join(found).decode() == "é€😀!"


def test_the_bytes_are_those_of_the_documents_not_of_spaces_and_names_that_the_tokenizer_adds(sentencepiece):
    """transformers' convention: a document is <s>, a space, its text, </s>; <turn> ends a turn of a chat."""
    texts = ["Hi Hi", "iH", "€"]
    ids = [token for text in texts for token in sentencepiece.encode(text, False, True)]
    assert len(ids) == 15
    turn = sentencepiece.encode("<turn>").tolist()[-1:]
    found = list(document_bytes(np.array([*ids, *turn]), sentencepiece.description))
    assert b"".join(found).decode() == "".join(texts)
    assert len(b"".join(found[9:])) == 3


def test_a_space_that_roberta_puts_before_a_document_is_no_byte():
    bytes_alone = {letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(bytes_alone, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    texts = ["Hi é", "a"]
    ids = [token for text in texts for token in library.encode(f"{text}<|endoftext|>").ids]
    found = document_bytes(np.array(ids), {"type": "tokenizers", "json": library.to_str()})
    assert b"".join(found).decode() == "".join(texts)


@pytest.fixture
def changing():
    """A tokenizer that composes accents, makes letters small and knows only some of them."""
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "é": 2}, "<unk>"))
    library.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.add_special_tokens(["<unk>", "<|endoftext|>"])
    return from_json({"type": "tokenizers", "json": library.to_str()})


@pytest.mark.parametrize("first", ["A", "E\u0301", "😀"])
def test_bytes_are_the_texts_own_whatever_the_tokenizer_makes_of_it(first, changing, tmp_path):
    train, val = "a" * 90, first + "E\u0301 x😀İ\n"
    write_text(tmp_path, (train + val)[: 9 * len(val)].ljust(9 * len(val), "a") + val, changing, "a test")
    found = Dataset(str(tmp_path))
    assert evaluate.predicted_bytes(found.tokens("val"), found.meta) == len(val.encode()) - len(
        first.encode()
    )


def test_bytes_of_documents_are_counted_as_they_are_written(changing, tmp_path):
    texts = [f"{i} E\u0301 😀\tÀ" for i in range(10)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "changing.json").write_text(changing.description["json"])
    options = dict(source=tmp_path / "texts.jsonl", to=tmp_path / "to", tokenizer=tmp_path / "changing.json")
    prepare([f"--{name}={value}" for name, value in (options | dict(val_fraction=0.4)).items()])
    found = Dataset(str(tmp_path / "to"))
    splits = [(found.tokens(split), found.meta.bytes[split]) for split in ("train", "val")]
    assert all(tokens.ids[0] == counted.first and counted.of_first == 1 for tokens, counted in splits)
    assert sum(counted.total for _, counted in splits) == sum(len(text.encode()) for text in texts)
    edit = json.loads((tmp_path / "to/meta.json").read_text())
    del edit["bytes"]  # as an earlier version wrote it
    (tmp_path / "to/meta.json").write_text(json.dumps(edit))
    assert evaluate.predicted_bytes(splits[0][0], Dataset(str(tmp_path / "to")).meta) == 0


# --- bad requests -----------------------------------------------------------------------------------------


def test_a_model_of_hugging_faces_format_is_evaluated_as_a_run_is(
    result, reference, dataset, tmp_path, capsys
):
    """Tokens that are not text have a loss only."""
    wordless = shutil.copytree(dataset, tmp_path / "wordless")
    meta = json.loads((wordless / "meta.json").read_text())
    (wordless / "meta.json").write_text(json.dumps(meta | {"tokenizer": None}))
    reference.save_pretrained(base := tmp_path / "base")  # it has no tokenizer either
    found = result(init_from=base, dataset=wordless)
    assert "no bits per byte" in capsys.readouterr().out and found["bits_per_byte"] is None
    assert found["loss"] == result()["loss"]
    assert "says nothing of a data set: give one with --dataset" in error(f"--init_from={base}")


def test_questions_to_a_model_with_a_long_context_take_a_short_cache(tmp_path):
    """64 answers are drawn at once: a cache of 131,072 tokens each would take hundreds of gigabytes."""
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    shape |= dict(vocab_size=library_tokenizer().get_vocab_size(), max_position_embeddings=131_072)
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, library_tokenizer())
    model, _ = evaluate.answering(evaluate.EvaluateOptions(init_from=str(tmp_path)))
    assert model.config.block_size == 1024


@pytest.mark.parametrize(
    "options, says",
    [
        ("--stride=17", "--stride is 17, but the model reads 16 tokens at once: give 1 to 16"),
        ("--block_size=17", "--block_size is 17, but the model reads 16: give 1 to 16"),
        ("--tasks=add --stride=5", "--stride is not used with --tasks: leave it out"),
        ("--ask=a.txt --split=train", "--split is not used with --ask: leave it out"),
        ("--beside=other", "--beside is not used without --tasks or --ask: leave it out"),
        ("--tasks=add --beside=a,a", "--beside=a,a: a is asked already: name each model once"),
        ("--tasks=add --mesh=data:2", "questions are answered on one device: give --mesh=data:1"),
    ],
)
def test_a_bad_option_is_one_line(run, options, says):
    assert error(f"--out_dir={run}", *options.split()) == says


def test_a_result_that_cannot_be_written_is_one_line_before_anything_is_computed(tmp_path):
    (tmp_path / "file").write_text("in the way")
    text = error("--out_dir=nowhere", f"--json={tmp_path}/file/result.json")  # nothing has looked for the run
    assert text == f"{tmp_path}/file: File exists"


def test_a_data_set_of_another_vocabulary_is_one_line(run, tmp_path):
    """The tokenizer is another, or only the tokens, as of nanoGPT's bins, whose vocabulary is padded."""
    write_dataset(tmp_path / "data", [0] * 20, [1] * 19 + [V], CharTokenizer(SYMBOLS + "!"), "a test")
    text = error(f"--out_dir={run}", f"--dataset={tmp_path}/data")
    assert text.endswith("has another tokenizer than the model: give one with its own")
    meta = json.loads((tmp_path / "data" / "meta.json").read_text()) | {"tokenizer": TOKENIZER.description}
    (tmp_path / "data" / "meta.json").write_text(json.dumps(meta))
    text = error(f"--out_dir={run}", f"--dataset={tmp_path / 'data'}")
    assert "val.bin: token 65 is not of the model's vocabulary of 65" in text


def test_a_data_set_that_is_another_text_than_the_run_learned_is_refused(reference, dataset, tmp_path):
    data = shutil.copytree(dataset, tmp_path / "data")
    run = save_reference(tmp_path / "run", reference, data, TOKENIZER.description)
    evaluate.main(words := [f"--out_dir={run}", "--device=cpu", "--mesh=data:1"])
    write_dataset(data, ids := np.arange(300) % V, ids, TOKENIZER, "another text")
    for given in (words, [*words, f"--dataset={data}"], [*words, f"--dataset={os.path.relpath(data)}"]):
        assert "data was prepared anew, of another text" in refusal(evaluate.main, given)
    evaluate.main([*words, f"--dataset={shutil.copytree(data, tmp_path / 'copy')}"])
