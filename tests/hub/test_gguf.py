"""GGUF files: transformers reads the weights that we wrote, and llama.cpp, where it is installed, agrees."""

import json

import gguf
import jax
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from data.conversations import Renderer
from data.train_tokenizer import save, train
from data.writer import load_tokenizer
from hub.export import write_tokenizer
from hub.gguf_file import modelfile, write_gguf
from model import GPT, GPTConfig
from tests.helpers import ROOT, refusal
from tests.models import large
from tests.reference import LLAMA3

ROPE = dict(position="rope", norm="rmsnorm")
SHAPES = {
    "gpt2": dict(mlp="gelu", bias=True, block_size=1024),  # transformers reads no other
    "llama": ROPE | dict(n_kv_head=2, tie_embeddings=False),
    "qwen2": ROPE | dict(qkv_bias=True),
    "qwen3": ROPE | dict(qk_norm=True, head_dim=128),  # nor another
}
TEXTS = ["the quick brown fox", "It's 12345 we'll\n\n  x\t y ", "naïve café ☃ 漢字 🙂", "<|im_end|>", ""]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A byte-level tokenizer with merges, special tokens and a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save(train(iter(["the quick brown fox jumps over the lazy dog " * 20]), 300), folder)
    return load_tokenizer(str(folder))


def made(path, name, tokenizer, kind="f32", **changes) -> GPT:
    shape = dict(block_size=64, vocab_size=320, n_layer=2, n_head=4, n_embd=64) | SHAPES[name] | changes
    model = large(GPTConfig(**shape), None)
    write_gguf(path, model, tokenizer.description, kind)
    return model


@pytest.mark.parametrize(
    "name, kind", [*((name, "f32") for name in SHAPES), ("llama", "f16"), ("gpt2", "q8_0")]
)
def test_transformers_computes_the_same_logits(name, kind, tokenizer, tmp_path):
    model = made(tmp_path / "a.gguf", name, tokenizer, kind)
    written = {tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    assert written == {"F32", kind.upper()}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="a.gguf", dtype=torch.float32)
    tokens = np.random.default_rng(0).integers(320, size=(2, 8))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    found = np.asarray(jax.jit(GPT.__call__)(model, tokens))
    # A half has 11 bits, and q8_0 8: of logits of about 10, after two layers.
    rounding = {"f32": 1e-4, "f16": 2e-2, "q8_0": 0.3}[kind]
    assert found.std() > 1 and np.abs(found - expected).max() < rounding


def test_llama_3s_frequencies_are_divided_by_the_factors_in_the_file(tokenizer, tmp_path):
    made(tmp_path / "a.gguf", "llama", tokenizer, rope_scaling=8.0)
    (factors,) = (x.data for x in gguf.GGUFReader(tmp_path / "a.gguf").tensors if "rope_freqs" in x.name)
    rope = dict(rope_type="default", rope_theta=10000.0), LLAMA3 | dict(factor=8.0, rope_theta=10000.0)
    shape = dict(hidden_size=64, num_attention_heads=4)
    plain, scaled = (LlamaRotaryEmbedding(LlamaConfig(**shape, rope_parameters=x)).inv_freq for x in rope)
    np.testing.assert_allclose(factors, plain / scaled, rtol=1e-5)


def test_the_tokenizer_is_in_the_file(tokenizer, tmp_path):
    made(tmp_path / "a.gguf", "llama", tokenizer)
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    library = json.loads(tokenizer.description["json"])
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert {tokens[i]: i for i in range(tokenizer.vocab_size)} == library["model"]["vocab"] | {
        token["content"]: token["id"] for token in library["added_tokens"]
    }
    assert len(fields["tokenizer.ggml.merges"].contents()) == len(library["model"]["merges"])
    kinds = fields["tokenizer.ggml.token_type"].contents()
    control = {token["id"] for token in library["added_tokens"]}
    assert {i for i, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL} == control
    assert fields["tokenizer.ggml.eot_token_id"].contents() == tokens.index("<|im_end|>")
    assert "<|im_start|>" in fields["tokenizer.chat_template"].contents()
    said = modelfile("a", tokenizer.description)
    assert said.startswith("FROM ./a.gguf\n") and 'PARAMETER stop "<|im_end|>"' in said


def test_a_chat_begins_with_the_token_that_its_conversations_began_with(tokenizer, tmp_path):
    """Which the template does not write, as Qwen's does not."""
    template = (ROOT / "data/chat.jinja").read_text().replace("{{- bos_token or '' -}}", "")
    learned = Renderer(tokenizer, template).learned()
    prompt = Renderer(learned).prompt(messages := [{"role": "user", "content": "the fox"}]).tolist()
    made(tmp_path / "a.gguf", "llama", learned)
    written = gguf.GGUFReader(tmp_path / "a.gguf").fields["tokenizer.chat_template"].contents()
    assert Renderer(tokenizer, written).encode(messages, add_generation_prompt=True).ids.tolist() == prompt
    assert 'TEMPLATE """<|endoftext|>{{ range' in modelfile("a", learned.description)
    write_tokenizer(tmp_path / "theirs", learned.description, 64)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    asked = dict(add_generation_prompt=True, return_dict=False)
    assert theirs.apply_chat_template(messages, **asked) == prompt


def test_a_modelfile_prompts_as_the_template_does(tokenizer, capsys):
    """With the system message that a template writes by itself, or not at all where turns end otherwise."""
    template = (ROOT / "data/chat.jinja").read_text()
    by_itself = "{{- '<|im_start|>system\nYou are Q.<|im_end|>\n' -}}"
    default = template.replace("{{- bos_token or '' -}}", by_itself)
    said = modelfile("a", Renderer(tokenizer, default).learned().description)
    assert 'SYSTEM """You are Q."""\n' in said and '"""<|endoftext|>{{ range' in said
    other = Renderer(tokenizer, template.replace("<|im_end|>", "<|endoftext|>")).learned()
    assert modelfile("a", other.description) == "FROM ./a.gguf\n"
    assert "Ollama may not know the chat template" in capsys.readouterr().err


def test_a_tokenizer_of_bytes_alone_has_a_merge_that_no_text_needs(tmp_path):
    """llama.cpp's loader says of a file without: cannot find tokenizer merges in model file."""
    save(train(iter(["the fox"]), 259), tmp_path)
    made(tmp_path / "a.gguf", "llama", tokenizer := load_tokenizer(str(tmp_path)))
    (merge,) = gguf.GGUFReader(tmp_path / "a.gguf").fields["tokenizer.ggml.merges"].contents()
    assert all(len(tokenizer.encode(text)) == len(text.encode()) for text in TEXTS if "<" not in text)
    first, second = merge.split()  # bytes as GPT-2 writes them, of which none is in UTF-8
    assert first == second == bytes([255]).decode("latin-1")


def test_what_llama_cpp_does_not_compute_is_one_line(tokenizer, tmp_path):
    for name, changes, says in (
        ("llama", dict(window=4), "does not compute this model's window=4"),
        ("qwen3", dict(rope_scaling=8.0), "does not compute this model's rope_scaling=8.0"),
        ("gpt2", dict(mlp="gelu_erf"), "does not compute this model's mlp=gelu_erf"),
    ):
        assert says in refusal(made, tmp_path / "a.gguf", name, tokenizer, **changes)
    model = large(GPTConfig(block_size=8, vocab_size=65, n_layer=1, n_head=1, n_embd=8, **ROPE), None)
    for description in (None, {"type": "char", "symbols": "ab"}):
        assert "byte-level BPE" in refusal(write_gguf, tmp_path / "a.gguf", model, description, "f32")
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_llama_cpp_reads_the_same_tokens_and_draws_the_same_text(name, tokenizer, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    model = made(tmp_path / "a.gguf", name, tokenizer)
    theirs = llama_cpp.Llama(str(tmp_path / "a.gguf"), n_ctx=64, logits_all=True, verbose=False)
    for text in TEXTS:
        ours = tokenizer.encode(text).tolist()
        assert theirs.tokenize(text.encode(), add_bos=False, special=True) == ours
    tokens = tokenizer.encode("the quick").tolist()
    compute = jax.jit(GPT.__call__)
    theirs.eval(tokens)
    found = np.asarray(compute(model, np.array([tokens])))[0]
    np.testing.assert_allclose(np.array(theirs.scores[: len(tokens)]), found, atol=1e-3 * np.abs(found).max())
    drawn = theirs.create_completion(tokens, max_tokens=50, temperature=0.0)["choices"][0]["text"]
    for _ in range(50):
        tokens.append(int(compute(model, np.array([tokens[-64:]]))[0, -1].argmax()))
    assert tokenizer.decode(tokens)[len("the quick") :].startswith(drawn[:20])
