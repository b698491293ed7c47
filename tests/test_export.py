"""export.py: what transformers and PEFT load computes what the run's model does, and comes back the same."""

import contextlib
import importlib
import os
import shlex
from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import numpy as np
import peft
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import export
import train
from common.errors import UserError, command
from config.options import Options
from data.conversations import Renderer
from data.tokenizer import CharTokenizer, TiktokenTokenizer, from_json, read_tokenizer
from hub.export import new_folder, plain, tensors, which_family, write_model, write_tokenizer
from model import GPT, GPTConfig
from runs.checkpoint import Manifest
from runs.load import load_pretrained, load_run
from tests.helpers import assert_same_bits, contents, refusal, save_overfitted, save_run, slowly
from tests.models import large
from tests.pretrained import END, PAD, START, TURN, save_llama
from tests.reference import random_reference
from tests.test_fast import Halved
from training.state import create_state, create_state_around, model_config

prepare_text = importlib.import_module("data.shakespeare.prepare").main

TINY = replace(
    Options(), n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=65, device="cpu", unroll=1
)
LLAMA = dict(position="rope", norm="rmsnorm", n_kv_head=2)
SHAPES = {
    "gpt2": dict(mlp="gelu", bias=True),
    "gpt2, exact gelu": dict(mlp="gelu_erf", bias=True),
    "gpt2, untied, relu2": dict(mlp="relu2", bias=True, n_hidden=60, tie_embeddings=False, norm_eps=1e-3),
    "gpt2, no biases, µP": dict(mlp="gelu", mup_base_width=8),
    "llama": LLAMA | dict(tie_embeddings=False, head_dim=12),
    "llama 3": LLAMA | dict(rope_theta=500000.0, rope_scaling=32.0, n_kv_head=None),
    "llama, µP": LLAMA | dict(mup_base_width=8),
    "mistral": LLAMA | dict(window=5, n_kv_head=1, n_hidden=100),
    "qwen2": LLAMA | dict(qkv_bias=True),
    "qwen2, window": LLAMA | dict(qkv_bias=True, window=5),
    "qwen3": LLAMA | dict(qk_norm=True, head_dim=12),
}
RARE = ("gpt2, exact gelu", "gpt2, untied, relu2", "llama", "llama, µP", "mistral", "qwen2", "qwen2, window")
CHARACTERS = CharTokenizer("".join(map(chr, range(33, 98)))).description


def a_run(folder, options, tokenizer=CHARACTERS):
    """A run's folder with one checkpoint, of large random weights."""
    state = create_state_around(large(model_config(options, options.vocab_size), None), options)
    return save_run(folder, state, Manifest(options, options.vocab_size, tokenizer))


@pytest.fixture(scope="module")
def gpt2_run(tmp_path_factory):
    """The folder of a run whose model is a GPT-2."""
    options = replace(TINY, dataset="shakespeare", **SHAPES["gpt2"])
    return a_run(tmp_path_factory.mktemp("gpt2") / "run", options)


def run_export(run, to, *more):
    export.main([f"--out_dir={run}", f"--to={to}", *more])
    return to


def refused(run, to, *more):
    return refusal(run_export, run, to, *more)


def logits(model, tokens):
    """Return the logits of a model of transformers."""
    with torch.no_grad():
        return model.eval()(torch.tensor(tokens)).logits.numpy()


# --- a model for transformers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [x for x in SHAPES if x not in RARE] + slowly(*RARE))
def test_transformers_computes_the_same_logits_and_the_way_back_gives_the_same_bytes(name, tmp_path):
    run = a_run(tmp_path / "run", replace(TINY, **SHAPES[name]))
    folder = run_export(run, tmp_path / "model")

    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert theirs.config.model_type == name.split(",")[0].split()[0] and theirs.dtype == torch.float32
    ours, _, _ = load_run(str(run))
    tokens = np.random.default_rng(0).integers(65, size=(2, 16))
    expected = logits(theirs, tokens)
    assert expected.std() > 0.1
    # FLOAT32_ROUNDING, of logits of about 10.
    np.testing.assert_allclose(jax.jit(GPT.__call__)(ours, tokens), expected, rtol=0, atol=1e-4)
    dropped = {value for key, value in theirs.config.to_dict().items() if key.endswith("_pdrop")}
    assert dropped <= {ours.config.dropout}  # for those who train it on

    model, _ = load_pretrained(str(folder))
    (again := tmp_path / "again").mkdir()
    write_model(again, model, which_family(model.config), CHARACTERS)
    assert contents(again).items() <= contents(folder).items()


@pytest.mark.parametrize(
    "shape, says",
    [
        (dict(), ["for GPT2LMHeadModel: mlp=swiglu, not gelu;", "position=learned, not rope"]),
        (dict(n_head=32), ["for LlamaForCausalLM: rope needs an even head size"]),
        (dict(mlp="gelu", bias=True, n_kv_head=2), ["for GPT2LMHeadModel: n_kv_head=2, not 4;"]),
    ],
)
def test_another_shape_names_the_options_in_the_way(shape, says):
    text = refusal(which_family, model_config(replace(TINY, **shape), 65))
    assert all(words in text for words in says)


def test_a_layer_that_other_programs_lack_is_not_left_out():
    model = GPT(GPTConfig(n_layer=1, n_head=1, n_embd=8, vocab_size=9, block_size=8), key=jax.random.key(0))
    assert plain(model) is model
    own = eqx.tree_at(lambda m: m.blocks.mlp, model, replace_fn=Halved)
    with pytest.raises(UserError, match="the model has Halved, a layer of your own"):
        plain(own)
    gpt2 = model_config(replace(TINY, mlp="gelu"), 65)
    own = eqx.tree_at(lambda m: m.blocks.mlp, GPT(gpt2, key=jax.random.key(0)), replace_fn=Halved)
    with pytest.raises(UserError, match="the model has Halved, a layer of your own"):
        tensors(own, which_family(gpt2))  # whose biases are added


def test_an_empty_folder_is_filled_and_stays_the_same_folder(tmp_path):
    """A shell may stand in it, or a disk be mounted there."""
    before = tmp_path.stat().st_ino
    with new_folder(tmp_path) as beside:
        (beside / "config.json").touch()
    assert tmp_path.stat().st_ino == before and list(contents(tmp_path)) == ["config.json"]


def test_a_folder_with_something_in_it_is_left_alone(gpt2_run, tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "mine").touch()
    for place in (tmp_path / "to", tmp_path / "to" / "mine"):
        assert f"--to={place} is there already" in refused(gpt2_run, place)
    assert list(contents(tmp_path / "to")) == ["mine"]
    (tmp_path / "to" / "mine").unlink()
    text = refused(gpt2_run, tmp_path / "new" / "to", "--format=peft")
    assert text == f"out_dir={gpt2_run}: the run has no adapters: leave out --format=peft"
    assert [path.name for path in tmp_path.iterdir()] == ["to"]
    assert "config.json" in contents(run_export(gpt2_run, tmp_path / "to"))


def test_the_card_says_what_the_model_is(gpt2_run, tmp_path, capsys):
    files = contents(to := run_export(gpt2_run, tmp_path / "a [b](c)"))
    weights = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
    assert set(files) == weights | {"tokenizer.json", "tokenizer_config.json"}
    card = files["README.md"].decode()
    parameters = sum(x.size for x in jax.tree.leaves(load_run(str(gpt2_run))[0]))
    assert "# a \\[b\\](c)\n" in card and f"A GPT2LMHeadModel of {parameters:,} parameters" in card
    assert "on shakespeare\nfor 0 iterations. Its validation loss was not measured." in card
    printed = capsys.readouterr().out.splitlines()[-1].partition(": ")[2]  # for a shell
    assert shlex.split(printed.replace("<your name>", "me")) == ["hf", "upload", "me/a [b](c)", str(to)]


@pytest.mark.parametrize(
    "checkpoint, iteration, score, says",
    [
        ("best", 1, "loss", "validation loss is 2.0000 nats per token"),
        ("last", 2, "loss", "validation loss is 3.0000 nats per token"),
        ("best", 1, "reward", "mean reward on held-out questions is -1.0000"),  # 1 - 2.0
    ],
)
def test_the_weights_and_the_card_are_those_of_the_checkpoint_asked_for(
    checkpoint, iteration, score, says, tmp_path, capsys
):
    options = replace(TINY, **SHAPES["gpt2"])
    state = create_state(model_config(options, 65), options)
    run = save_overfitted(tmp_path / "run", state, Manifest(options, 65, CHARACTERS, score=score))
    folder = run_export(run, tmp_path / "to", f"--checkpoint={checkpoint}")
    assert_same_bits(load_pretrained(str(folder))[0], load_run(str(run), iteration)[0])
    assert f"for {iteration} iterations. Its {says}." in (folder / "README.md").read_text()
    assert f"GPT2LMHeadModel of iter {iteration}: " in capsys.readouterr().out


def test_a_reader_that_has_gone_costs_no_file(gpt2_run, tmp_path):
    expected = contents(run_export(gpt2_run, tmp_path / "expected" / "to"))
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", 1) as stdout, contextlib.redirect_stdout(stdout):
        with pytest.raises(SystemExit) as ended:
            command(lambda argv: run_export(gpt2_run, tmp_path / "to"))
    assert ended.value.code == 141
    assert contents(tmp_path / "to") == expected


@pytest.mark.skipif("TIKTOKEN_CACHE_DIR" not in os.environ, reason="needs tiktoken's files of GPT-2")
def test_gpt2s_tokenizer_goes_along(tmp_path):
    tokenizer = TiktokenTokenizer("gpt2")
    options = replace(TINY, n_embd=8, vocab_size=50257, **SHAPES["gpt2"])
    folder = run_export(a_run(tmp_path / "run", options, tokenizer=tokenizer.description), tmp_path / "to")
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "Hello, wörld: 1234 don't  \n\n\tstop €😀 <|endoftext|> again"
    assert theirs.encode(text) == tokenizer.encode(text).tolist()
    assert theirs.eos_token_id == AutoModelForCausalLM.from_pretrained(folder).config.eos_token_id == 50256


# --- its tokens and its chats -----------------------------------------------------------------------------


def test_characters_are_encoded_one_by_one_and_no_other_is_taken(tmp_path):
    tokenizer = CharTokenizer("\n \t'ab.,é😀\u200d")
    write_tokenizer(tmp_path, tokenizer.description, 8)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("ab ba", " a  b \n\n\t'a .,", "é😀\u200d\n", ""):
        assert theirs(text).input_ids == tokenizer.encode(text).tolist()
        assert theirs.decode(tokenizer.encode(text)) == text
    with pytest.raises(Exception, match="UNK"):
        theirs("c")
    assert from_json(read_tokenizer(tmp_path)).encode("a b").tolist() == tokenizer.encode("a b").tolist()


@pytest.mark.parametrize("lora_rank", [0, *slowly(2)])
def test_a_chat_model_goes_out_as_it_came_in(tiny, tmp_path, lora_rank):
    """Its data were prepared with the vocabulary alone, which says nothing of its use."""
    save_llama(source := tmp_path / "llama")
    theirs = AutoTokenizer.from_pretrained(source)
    (lone := tmp_path / "lone.json").write_text((source / "tokenizer.json").read_text())
    (text := tmp_path / "text.txt").write_text("the other thing and the rest. " * 30)
    prepare_text([f"--source={text}", f"--to={tmp_path / 'data'}", f"--tokenizer={lone}"])
    options = dict(init_from=source, dataset=tmp_path / "data", max_iters=1, lora_rank=lora_rank)
    words = tiny(tmp_path / "run", **options)
    train.main([word for word in words if not word.startswith(("--n_", "--lora_rank=0"))])
    ours = run_export(tmp_path / "run", tmp_path / "to")

    again, chat = AutoTokenizer.from_pretrained(ours), [{"role": "user", "content": "hi"}]
    assert again.special_tokens_map == theirs.special_tokens_map
    assert again("the [TURN] other").input_ids == theirs("the [TURN] other").input_ids
    assert again.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False)
    assert GenerationConfig.from_pretrained(ours).eos_token_id == [END, TURN]
    config = AutoConfig.from_pretrained(ours)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (START, [END, TURN], PAD)
    renderer = Renderer(from_json(load_run(str(tmp_path / "run"))[1].tokenizer))
    assert renderer.tokenizer.decode(renderer.prompt(chat)).startswith("<s>user: hi[TURN]")


# --- adapters for PEFT ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lora_run(tiny, tmp_path_factory):
    """`lora_run(name, targets)`: the folder of a run with adapters beside `random_reference(name)`."""

    @cache
    def train_beside(name, targets):
        folder = tmp_path_factory.mktemp("lora")
        random_reference(name).save_pretrained(folder / "base")
        options = dict(max_iters=3, eval_interval=3, lora_rank=4, lora_alpha=8.0, lora_targets=targets)
        arguments = tiny(folder / "run", init_from=folder / "base", **options)
        train.main([word for word in arguments if not word.startswith("--n_")])
        return folder / "run"

    return train_beside


@pytest.mark.parametrize(
    "name, targets",
    [("gpt2", "c_q,c_v"), *slowly(*((name, "all") for name in ("gpt2", "llama", "qwen2", "qwen3")))],
)
def test_peft_computes_the_same(lora_run, name, targets, tmp_path):
    base, run = random_reference(name), lora_run(name, targets)
    folder = run_export(run, tmp_path / "adapter", "--format=peft")
    tokens = np.random.default_rng(0).integers(65, size=(2, 8))
    ours = np.asarray(load_run(str(run))[0](tokens))
    before = logits(base, tokens)
    merged = AutoModelForCausalLM.from_pretrained(run_export(run, tmp_path / "merged"))
    np.testing.assert_allclose(ours, logits(merged, tokens), atol=1e-4)
    adapted = peft.PeftModel.from_pretrained(base, folder)
    after = logits(adapted, tokens)
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(ours, after, atol=1e-4)
    assert contents(folder).keys() == {"adapter_config.json", "adapter_model.safetensors"}


def test_adapters_of_a_model_in_mup_are_one_line(tmp_path, monkeypatch):
    """Its multipliers have a place in whole weights, and none in adapters beside those of another model."""
    config = model_config(replace(TINY, **LLAMA, mup_base_width=8), 65)
    model = jax.eval_shape(lambda: GPT(config, key=jax.random.key(0)))
    manifest = Manifest(TINY, 65, None, base={"init_from": "base", "fingerprint": "of it"})
    monkeypatch.setattr(export, "load_run", lambda *_, **__: (model, manifest, 0))
    text = refused("run", tmp_path / "adapter", "--format=peft")
    assert text.startswith("out_dir=run: adapters cannot hold the multipliers of a model in µP")
    assert list(tmp_path.iterdir()) == []
