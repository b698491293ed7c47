"""A run's model leaves as `transformers` reads it, and comes back the same."""

import os
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, LlamaForCausalLM

from config.command_line import UserError
from config.options import Options
from data.tokenizer import CharTokenizer, JsonTokenizer, TiktokenTokenizer
from hub import export
from model import GPT
from runs.checkpoint import Checkpoints
from runs.load import load_pretrained, load_run
from runs.manifest import Manifest
from training.state import create_state, create_state_around, model_config, shape_options

TINY = replace(
    Options(), n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=65, device="cpu", unroll=1
)
LLAMA = dict(position="rope", norm="rmsnorm", n_kv_head=2)
SHAPES = {
    "gpt2": dict(mlp="gelu", bias=True),
    "gpt2, untied": dict(mlp="gelu", bias=True, tie_embeddings=False, norm_eps=1e-3),
    "llama": LLAMA | dict(tie_embeddings=False),
    "llama, tied": LLAMA | dict(n_kv_head=1, n_hidden=100),
    "llama 3": LLAMA | dict(rope_theta=500000.0, rope_scaling=32.0, n_kv_head=None),
}
CHARACTERS = CharTokenizer("".join(map(chr, range(33, 98)))).to_json()


def save_run(folder, options, state=None, tokenizer=CHARACTERS):
    """A run's folder with one checkpoint, of large random weights unless a state is given."""
    if state is None:
        state = create_state(model_config(options, options.vocab_size), options)
        state = jax.tree.map(lambda w: w + 0.2 * np.sin(np.arange(w.size)).reshape(w.shape), state)
    checkpoints = Checkpoints(str(folder))
    checkpoints.save(state, Manifest(options, options.vocab_size, tokenizer, best_val_loss=2.5))
    checkpoints.wait()
    return folder


def run_export(run, to, *more):
    export.main([f"--out_dir={run}", f"--to={to}", *more])
    return to


def refusal(run, to):
    with pytest.raises(UserError) as caught:
        run_export(run, to)
    text = str(caught.value)
    assert "\n" not in text
    return text


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_computes_the_same_logits_and_the_way_back_gives_the_same_bytes(name, tmp_path):
    run = save_run(tmp_path / "run", replace(TINY, **SHAPES[name]))
    folder = run_export(run, tmp_path / "first" / "model")

    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert type(theirs) is (GPT2LMHeadModel if name.startswith("gpt2") else LlamaForCausalLM)
    assert theirs.dtype == torch.float32
    ours, _, _ = load_run(str(run))
    tokens = np.random.default_rng(0).integers(65, size=(2, 16))
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(tokens)).logits.numpy()
    assert expected.std() > 0.1
    # See test_model's FLOAT32_ROUNDING, of logits of about 10.
    np.testing.assert_allclose(jax.jit(GPT.__call__)(ours, tokens), expected, rtol=0, atol=1e-4)

    model, _ = load_pretrained(str(folder))
    options = replace(TINY, **shape_options(model.config))
    again = save_run(tmp_path / "again", options, create_state_around(model, options))
    assert contents(run_export(again, tmp_path / "second" / "model")) == contents(folder)


@pytest.mark.parametrize(
    "shape, says",
    [
        (
            dict(),
            [
                "for GPT2LMHeadModel: mlp=swiglu, not gelu, bias=False, not True;",
                "position=learned, not rope",
            ],
        ),
        (dict(mlp="gelu", bias=True, n_kv_head=2), ["for GPT2LMHeadModel: n_kv_head=2, not 4;"]),
        (dict(mlp="gelu", bias=True, n_hidden=64), ["for GPT2LMHeadModel: n_hidden=64, not 128;"]),
        (LLAMA | dict(qk_norm=True), ["for LlamaForCausalLM: qk_norm=True, not False"]),
        (LLAMA | dict(bias=True), ["for LlamaForCausalLM: bias=True, not False"]),
        (LLAMA | dict(mlp="gelu"), ["for LlamaForCausalLM: mlp=gelu, not swiglu"]),
    ],
)
def test_another_shape_names_the_options_in_the_way(shape, says, tmp_path):
    text = refusal(save_run(tmp_path / "run", replace(TINY, **shape)), tmp_path / "to")
    assert all(words in text for words in says)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    run = save_run(tmp_path / "run", replace(TINY, **SHAPES["gpt2"]))
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "mine").touch()
    assert "is there already" in refusal(run, tmp_path / "to")
    assert "is there already" in refusal(run, tmp_path / "to" / "mine")
    assert list(contents(tmp_path / "to")) == ["mine"]
    (tmp_path / "to" / "mine").unlink()
    assert "config.json" in contents(run_export(run, tmp_path / "to"))


def test_where_there_is_no_run_nothing_is_written(tmp_path):
    assert "no checkpoint there" in refusal(tmp_path / "none", tmp_path / "to")
    assert list(tmp_path.iterdir()) == []


def test_the_card_says_what_the_model_is(tmp_path):
    run = save_run(tmp_path / "run", replace(TINY, dataset="shakespeare", **SHAPES["gpt2"]))
    card = (run_export(run, tmp_path / "bard") / "README.md").read_text()
    parameters = sum(x.size for x in jax.tree.leaves(load_run(str(run))[0]))
    assert "# bard\n" in card and f"A GPT2LMHeadModel of {parameters:,} parameters" in card
    assert "| 2 | 4 | 32 | 16 | 65 | shakespeare | 0 | 2.5000 |" in card


def test_characters_have_no_tokenizer_there(tmp_path, capsys):
    folder = run_export(save_run(tmp_path / "run", replace(TINY, **SHAPES["gpt2"])), tmp_path / "to")
    assert "note: transformers has no tokenizer" in capsys.readouterr().out
    expected = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
    assert set(contents(folder)) == expected


@pytest.mark.skipif("TIKTOKEN_CACHE_DIR" not in os.environ, reason="needs tiktoken's files of GPT-2")
def test_gpt2s_tokenizer_goes_along(tmp_path):
    tokenizer = TiktokenTokenizer("gpt2")
    options = replace(TINY, n_embd=8, vocab_size=50257, **SHAPES["gpt2"])
    folder = run_export(save_run(tmp_path / "run", options, tokenizer=tokenizer.to_json()), tmp_path / "to")
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "Hello, wörld: 1234 don't  \n\n\tstop €😀 <|endoftext|> again"
    assert theirs.encode(text) == tokenizer.encode(text).tolist()
    assert (
        theirs.eos_token_id == 50256
        and AutoModelForCausalLM.from_pretrained(folder).config.eos_token_id == 50256
    )


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_tokenizer_json_goes_along_and_comes_back(tmp_path, tokenizer_json, family):
    tokenizer = JsonTokenizer(tokenizer_json.read_text())
    options = replace(TINY, n_embd=8, vocab_size=tokenizer.vocab_size, **SHAPES[family])
    folder = run_export(save_run(tmp_path / "run", options, tokenizer=tokenizer.to_json()), tmp_path / "to")
    text = "the other\twörld €😀 <|endoftext|>"
    assert AutoTokenizer.from_pretrained(folder).encode(text) == tokenizer.encode(text).tolist()
    _, description = load_pretrained(str(folder))
    assert description == tokenizer.to_json()
