"""Checkpoints in Hugging Face's format become the same model here, and what is no checkpoint is refused.

The checkpoints are written by `transformers` with random weights; nothing is downloaded.
"""

import json
import shutil
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from unittest.mock import Mock

import equinox as eqx
import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from config.options import Options
from hub.export import resolved
from hub.weights import FAMILIES, INDEX, Pretrained, locate, open_pretrained
from model import GPT, GPTConfig
from parallel.mesh import make_mesh, with_shardings
from runs.start import shape_of_weights
from tests.damage import answers
from tests.helpers import assert_same_bits, refusal
from tests.reference import CONFIGS, NAMES, as_gpt, random_reference
from training.state import model_config, state_shapes


def load(folder, **changes):
    """The model of a checkpoint, on one device."""
    pretrained = open_pretrained(str(folder))
    config = replace(pretrained.config, **changes)
    return pretrained.load(with_shardings(eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))))


def saved(name, folder, **settings):
    """The reference CONFIGS[name], whose checkpoint is written to the folder."""
    reference = random_reference(name)
    reference.save_pretrained(folder, **settings)
    return reference


def saved_in_parts(name, folder):
    """The reference CONFIGS[name] in several files, which the index alone names, and the index's path."""
    reference = saved(name, folder, max_shard_size="20KB")
    text = (index := folder / INDEX).read_text()
    for path in folder.glob("model-*.safetensors"):
        text = text.replace(path.name, part := f"part{path.name[6:11]}.safetensors")
        path.rename(folder / part)
    index.write_text(text)
    return reference, index


def logits(reference, T=8):
    """Tokens, and what the reference gives for them."""
    tokens = np.random.default_rng(0).integers(reference.config.vocab_size, size=(2, T))
    with torch.no_grad():
        expected = reference(torch.tensor(tokens)).logits.numpy()
    assert expected.std() > 0.1
    return tokens, expected


def assert_logits(model, tokens, expected):
    """To 1e-4: FLOAT32_ROUNDING, of logits of about 10."""
    np.testing.assert_allclose(jax.jit(GPT.__call__)(model, tokens), expected, rtol=0, atol=1e-4)


def refused(folder):
    """The one line with which a checkpoint is refused."""
    text = refusal(load, folder)
    assert str(folder) in text
    return text


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of GPT-2 to spoil."""
    saved("gpt2", tmp_path)
    return tmp_path


# Llama 3's scaling, and without the length of its first training, which is then the model's own.
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=1e4)
LLAMA3_AS_LONG = dict(LLAMA3)
LLAMA3["original_max_position_embeddings"] = 8192


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_tensors(folder, change, name="model.safetensors"):
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name)


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_that_of_transformers(name, tmp_path):
    reference = saved(name, tmp_path)
    model = load(tmp_path)
    assert resolved(model.config) == resolved(CONFIGS[name])
    assert_same_bits(model, as_gpt(name, dict(reference.named_parameters())))  # see test_model.py


def test_openais_own_file_has_shorter_names_and_the_causal_masks(folder):
    expected = load(folder)

    def as_openai(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for i in range(3):
            tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
            tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)

    change_tensors(folder, as_openai)
    assert_same_bits(load(folder), expected)


def test_rotation_and_other_entries_of_one_name_are_told_apart():
    rope = dict(rope_type="default", rope_theta=5e5, rms_norm_eps=1.0, vocab_size=7)
    found = FAMILIES["llama"].read_config(dict(rope_parameters=rope, rope_type="llama3", factor=4.0))
    assert found == replace(FAMILIES["llama"].read_config({}), rope_theta=5e5)


def test_a_config_of_transformers_4_says_the_rotation_in_two_entries():
    read, rope = FAMILIES["llama"].read_config, {x: y for x, y in LLAMA3.items() if x != "rope_theta"}
    found = read(dict(rope_theta=5e5, rope_scaling=rope))
    assert found == read(dict(rope_parameters=LLAMA3 | dict(rope_theta=5e5)))
    assert (found.rope_theta, found.rope_scaling) == (5e5, 8.0)
    assert read(dict(rope_theta=5e5, rope_scaling=None)) == replace(found, rope_scaling=1.0)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2", "qwen3"])
def test_what_a_config_leaves_out_is_as_in_transformers(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    ours, theirs = open_pretrained(str(tmp_path)).config, AutoConfig.from_pretrained(tmp_path)
    learned = name == "gpt2"
    assert ours.block_size == theirs.max_position_embeddings and ours.vocab_size == theirs.vocab_size
    assert ours.norm_eps == (theirs.layer_norm_epsilon if learned else theirs.rms_norm_eps)
    assert (ours.n_embd, ours.n_layer) == (theirs.hidden_size, theirs.num_hidden_layers)
    assert ours.hidden == (4 * theirs.n_embd if learned else theirs.intermediate_size)
    assert ours.head_size == getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert ours.kv_heads == getattr(theirs, "num_key_value_heads", theirs.num_attention_heads)
    assert (ours.window, ours.tie_embeddings) == (getattr(theirs, "sliding_window", None), learned)


def test_shards_are_read_like_one_file(tmp_path, monkeypatch):
    reference = saved("gpt2", tmp_path, max_shard_size="40KB")
    assert len(files := sorted(tmp_path.glob("*.safetensors"))) > 3
    monkeypatch.chdir(tmp_path.parent)
    expected = as_gpt("gpt2", dict(reference.named_parameters()))
    assert_same_bits(load(tmp_path.name), expected)  # a folder may be relative
    for damage in (lambda path: path.write_bytes(path.read_bytes()[:-1]), Path.unlink):
        damage(files[1])
        assert f"{files[1]}: missing, damaged or cut short" in refused(tmp_path)


def test_the_index_decides_which_shards_count(tmp_path):
    """A shard of an earlier save, a stale copy of a tensor, and names of the index's own."""
    reference, index = saved_in_parts("llama", tmp_path)
    stale = {"lm_head.weight": torch.zeros(65, 48), "model.norm.weight": torch.zeros(48)}
    save_file(stale, tmp_path / "model-99999-of-99999.safetensors")
    places = json.loads(index.read_text())["weight_map"]
    others = [name for name in sorted(set(places.values())) if name != places["lm_head.weight"]]
    for name in others:
        change_tensors(tmp_path, lambda t: t.update({"lm_head.weight": stale["lm_head.weight"]}), name)
    assert_same_bits(load(tmp_path), as_gpt("llama", dict(reference.named_parameters())))
    index.unlink()
    assert "no model.safetensors, nor model.safetensors.index.json" in refused(tmp_path)
    index.write_text('{"weight_map": {"lm_head.weight": 1}}')
    assert f"{index}: damaged (" in refused(tmp_path)


def test_half_precision_becomes_float32(tmp_path):
    reference = random_reference("llama").to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    assert_same_bits(load(tmp_path), as_gpt("llama", dict(reference.float().named_parameters())))


def test_a_tied_head_may_be_in_the_file_but_no_other(folder):
    """transformers 5 keeps both, and computes with the head."""
    expected = load(folder)
    change_tensors(folder, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"].clone()}))
    assert_same_bits(load(folder), expected)
    change_tensors(folder, lambda t: t.update({"lm_head.weight": torch.randn(65, 48)}))
    assert "tie_word_embeddings is true, and lm_head.weight is not the embedding" in refused(folder)


def test_a_smaller_block_size_leaves_out_the_last_positions(tmp_path):
    reference = saved("gpt2", tmp_path)
    assert_logits(load(tmp_path, block_size=8), *logits(reference, T=8))


def test_weights_go_where_the_mesh_wants_them(tmp_path):
    saved("gpt2", tmp_path)
    expected, pretrained = load(tmp_path), open_pretrained(str(tmp_path))
    options = replace(Options(), **shape_of_weights(str(tmp_path)))
    with jax.set_mesh(make_mesh("data:2,fsdp:2,tensor:2")):
        shapes = state_shapes(model_config(options, options.vocab_size), options).model
        model = pretrained.load(shapes)
        for ours, target in zip(jax.tree.leaves(model), jax.tree.leaves(shapes), strict=True):
            assert ours.sharding.is_equivalent_to(target.sharding, ours.ndim)
            assert ours.sharding.shard_shape(ours.shape) == ours.addressable_shards[0].data.shape
        assert_same_bits(model, expected)


def test_a_folder_without_weights_says_how_to_convert_a_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    text = refused(folder)
    assert "no model.safetensors" in text and "save_pretrained" in text
    (folder / "config.json").unlink()
    open_pretrained.cache_clear()
    text = refused(folder)  # as of a folder of adapters, or of nanoGPT's
    assert "config.json: there is no such file" in text
    assert "merge adapters into their model with PEFT" in text and "-m hub.from_nanogpt" in text


NOT_FINITE = "has numbers that are not real and finite"


@pytest.mark.parametrize(
    "name, tensor, says",
    [
        ("transformer.h.1.mlp.c_fc.bias", None, "the checkpoint has no tensor transformer.h.1.mlp.c_fc.bias"),
        ("h.0.extra", torch.zeros(1), "the checkpoint has the unknown tensor transformer.h.0.extra"),
        ("ln_f.bias", torch.ones(48), "two tensors are transformer.ln_f.bias"),
        ("transformer.ln_f.bias", torch.zeros(47), "ln_f.bias is (47,), and the model needs (48,)"),
        ("transformer.h.2.mlp.c_fc.weight", torch.zeros(3), "(3,), and the model needs (48, 192)"),
        ("transformer.ln_f.weight", torch.full((48,), torch.nan), f"transformer.ln_f.weight {NOT_FINITE}"),
        ("transformer.ln_f.weight", torch.ones(48, dtype=torch.complex64), NOT_FINITE),
        ("transformer.ln_f.weight", torch.ones(48).to(torch.float8_e4m3fn), "cannot be read"),
    ],
)
def test_a_tensor_that_the_model_cannot_have_is_named(name, tensor, says, folder):
    def change(tensors):
        tensors.pop(name, None)
        tensors |= {} if tensor is None else {name: tensor}

    change_tensors(folder, change)
    assert says in refused(folder)


@pytest.mark.parametrize(
    "name, values, says",
    [
        ("gpt2", dict(model_type="mamba"), "model_type is 'mamba', and only gpt2, llama, mistral, qwen2, "),
        ("gpt2", dict(activation_function="silu"), "activation_function is 'silu'"),
        ("gpt2", dict(n_inner="100"), "transformers refuses it: Validation error for field 'n_inner': "),
        ("gpt2", dict(per_layer_config={}), "per_layer_config is {}"),
        ("gpt2", dict(is_causal=False), "is_causal is False"),
        ("gpt2", dict(n_head=5), "n_embd=48 must be a multiple of n_head=5"),
        ("mistral", dict(is_causal=None), "is_causal is null beside a window"),
        ("llama", dict(head_dim=3), "rope needs an even head size: head_dim is 3"),
        ("qwen3", dict(attention_bias=True), "attention_bias is True"),
        ("qwen2", dict(layer_types=[*2 * ["full_attention"], "sliding_attention"]), "layer_types differ"),
        ("qwen2", dict(num_hidden_layers=2**30), "num_hidden_layers is 1073741824, and 10000 at most"),
        ("llama", dict(sliding_window=4096), "sliding_window is 4096"),
        ("mistral", dict(sliding_window=0), "sliding_window as our window is 0: it should be greater than"),
        ("llama", dict(rope_scaling=dict(rope_type="linear", factor=4.0)), "rope_type is 'linear'"),
        ("llama", dict(rope_parameters=LLAMA3 | dict(low_freq_factor=2)), "low_freq_factor is 2"),
        ("llama", dict(rope_parameters=LLAMA3_AS_LONG), "original_max_position_embeddings is 16"),
    ],
)
def test_a_model_that_we_do_not_have_is_named(name, values, says, tmp_path):
    saved(name, tmp_path)
    change_config(tmp_path, **values)
    assert f"{tmp_path / 'config.json'}: cannot be used ({says}" in refused(tmp_path)


def test_any_damage_to_a_config_is_one_line(tmp_path):
    saved("llama 3", tmp_path)
    path, read = tmp_path / "config.json", lambda: open_pretrained.__wrapped__(str(tmp_path))
    said = answers(path, read)
    assert all(line is None or line.startswith(f"{path}: cannot be used (") for line in said.values())
    for key in ("vocab_size", "model_type", "max_position_embeddings"):
        assert said[f"{key} is true"] and said[f"{key} is nested to the limit"], key


@pytest.mark.parametrize("vocab_size", [50257, 50304, 50258, 50305])
def test_gpt2s_tokens_are_those_of_its_vocabulary_as_it_is_or_padded_as_nanogpts(vocab_size, tmp_path):
    config = GPTConfig(vocab_size=vocab_size)
    found = Pretrained(tmp_path, FAMILIES["gpt2"], config).tokenizer()
    assert found == ({"type": "tiktoken", "name": "gpt2"} if vocab_size in (50257, 50304) else None)


@pytest.mark.parametrize("name", ["gpt2-xl", "some/model", "nowhere", "no/such/folder", "x" * 300, "~nobody"])
def test_a_name_that_is_no_folder_and_cannot_be_downloaded_is_one_line(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = "openai-community/gpt2-xl" if name == "gpt2-xl" else name
    what = f"init_from={name}: there is no such folder, and {repository} cannot be downloaded from the hub ("
    assert refusal(locate, name).startswith(what)


def test_a_proxy_that_needs_another_package_is_one_line(monkeypatch):
    lacks = ImportError("Using SOCKS proxy, but the 'socksio' package is not installed")  # as HTTPX says it
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=lacks))
    assert f"cannot be downloaded from the hub ({lacks}): give a folder" in refusal(locate, "gpt2")


def test_the_files_that_an_index_names_are_downloaded_and_no_others(tmp_path, monkeypatch):
    reference, _ = saved_in_parts("gpt2", tmp_path / "hub")
    (tmp_path / "hub" / "consolidated.safetensors").write_text("the same once more")

    def download(repository, allow_patterns):
        (cache := tmp_path / "cache").mkdir(exist_ok=True)
        for path in (tmp_path / "hub").iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copyfile(path, cache / path.name)
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert_same_bits(load("some/model"), as_gpt("gpt2", dict(reference.named_parameters())))
    assert not (tmp_path / "cache" / "consolidated.safetensors").exists()


def test_a_causal_that_is_null_is_causal_as_in_transformers(tmp_path):
    saved("llama", tmp_path)
    change_config(tmp_path, is_causal=None)
    assert_logits(load(tmp_path), *logits(AutoModelForCausalLM.from_pretrained(tmp_path).eval()))


def test_a_window_of_no_layer_is_none(tmp_path):
    """As in Qwens whose layers before max_window_layers, which are all, attend to everything."""
    saved("qwen2", tmp_path)
    change_config(tmp_path, use_sliding_window=True, sliding_window=4, max_window_layers=3)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert theirs.config.sliding_window == 4
    assert_logits(load(tmp_path), *logits(theirs))
