"""nanoGPT's ckpt.pt becomes a folder of GPT-2's shape, with the logits of nanoGPT's own arithmetic."""

import pickle
import sys
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.functional import gelu, layer_norm, linear
from transformers import GPT2LMHeadModel

import sample
from data.writer import load_tokenizer, write_dataset
from hub import from_nanogpt
from runs.load import load_pretrained
from tests.helpers import refusal

V, T, D, L, H = 65, 16, 32, 2, 4
ARGS = dict(n_layer=L, n_head=H, n_embd=D, block_size=T, bias=False, vocab_size=V, dropout=0.2)
# Both are float32 with sums of at most 128 terms: logits of up to 10 differ by a few of their last bits.
CLOSE = dict(rtol=1e-5, atol=5e-5)
TOKENS = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(1))


def state_dict(bias, vocab_size=V):
    """The tensors of nanoGPT's model.py, of random numbers large enough for the logits to spread."""
    shapes = {"wte.weight": (vocab_size, D), "wpe.weight": (T, D), "ln_f.weight": (D,)}
    for i in range(L):
        layers = {"attn.c_attn": (3 * D, D), "attn.c_proj": (D, D), "ln_1": (D,), "ln_2": (D,)}
        layers |= {"mlp.c_fc": (4 * D, D), "mlp.c_proj": (D, 4 * D)}
        shapes |= {f"h.{i}.{name}.weight": shape for name, shape in layers.items()}
    if bias:
        shapes |= {n.replace("weight", "bias"): s[:1] for n, s in shapes.items() if n[:2] in ("h.", "ln")}
    torch.manual_seed(0)
    state = {f"transformer.{name}": 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    return state | {"lm_head.weight": state["transformer.wte.weight"]}


def nanogpt_logits(state, tokens, gelu=gelu):
    """Compute what nanoGPT's model.py does, for tokens (B, T)."""

    def layer(function, x, name):
        weight, bias = (state.get(f"transformer.{name}.{part}") for part in ("weight", "bias"))
        return function(x, (D,), weight, bias, 1e-5) if function is layer_norm else function(x, weight, bias)

    def heads(x):
        return x.unflatten(-1, (H, D // H)).transpose(1, 2)  # (B, H, T, C)

    length = tokens.shape[1]
    x = state["transformer.wte.weight"][tokens] + state["transformer.wpe.weight"][:length]
    for i in range(L):
        qkv = layer(linear, layer(layer_norm, x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn")
        q, k, v = map(heads, qkv.chunk(3, -1))
        scores = q @ k.transpose(2, 3) / (D // H) ** 0.5
        future = torch.ones(length, length).triu(1).bool()
        y = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        x = x + layer(linear, y.transpose(1, 2).flatten(2), f"h.{i}.attn.c_proj")
        hidden = gelu(layer(linear, layer(layer_norm, x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + layer(linear, hidden, f"h.{i}.mlp.c_proj")
    return linear(layer(layer_norm, x, "ln_f"), state["lm_head.weight"])


def save(folder, state, args=ARGS, prefix="", **changes):
    """A ckpt.pt as nanoGPT's train.py saves it."""
    checkpoint = {
        "model": {prefix + name: x for name, x in state.items()},
        "optimizer": torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]).state_dict(),
        "model_args": args,
        "iter_num": 250,
        "best_val_loss": torch.tensor(1.5),
        "config": {"dataset": "nowhere", "compile": True, "learning_rate": 1e-3},
    }
    torch.save(checkpoint | changes, path := folder / "ckpt.pt")
    return str(path)


def assert_logits(folder, tokens, expected):
    """Check those of the folder's model here and in transformers."""
    ours, _ = load_pretrained(str(folder))
    theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad():
        for found in (ours(jnp.asarray(tokens)), theirs(tokens).logits.numpy()):
            np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("prefix, bias", [("", True), ("_orig_mod.", False)])  # of some with torch.compile
def test_its_logits_are_nanogpts(tmp_path, bias, prefix):
    state = state_dict(bias)
    from_nanogpt.main([save(tmp_path, state, ARGS | {"bias": bias}, prefix), f"--to={tmp_path / 'gpt'}"])
    assert_logits(tmp_path / "gpt", TOKENS, nanogpt_logits(state, TOKENS))


def test_a_first_checkpoint_has_biases_and_masks_and_does_not_say_so(tmp_path):
    """Nor that its GELU is GPT-2's approximation, which an option says."""
    state = state_dict(bias=True)
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, T, T).tril() for i in range(L)}
    path = save(tmp_path, state | masks, {name: x for name, x in ARGS.items() if name != "bias"})
    from_nanogpt.main([path, f"--to={tmp_path / 'gpt'}", "--mlp=gelu"])
    expected = nanogpt_logits(state, TOKENS, partial(gelu, approximate="tanh"))
    assert_logits(tmp_path / "gpt", TOKENS, expected)


def test_a_forks_head_of_its_own_is_kept(tmp_path):
    state = state_dict(bias=False)
    state["lm_head.weight"] = state["transformer.wte.weight"].flip(0)
    from_nanogpt.main([save(tmp_path, state), f"--to={tmp_path / 'gpt'}"])
    assert_logits(tmp_path / "gpt", TOKENS, nanogpt_logits(state, TOKENS))


def test_its_tokenizer_is_that_of_the_data_set_whose_vocabulary_may_be_padded(
    tmp_path, tokenizer_json, capsys
):
    tokenizer = load_tokenizer(str(tokenizer_json))
    write_dataset(tmp_path / "data", *2 * [tokenizer.encode("the theatre")], tokenizer, "a test")
    state, args = state_dict(False, 320), ARGS | {"vocab_size": 320}  # of 260
    path = save(tmp_path, state, args, config={"dataset": str(tmp_path / "data")})
    from_nanogpt.main([path, f"--to={tmp_path / 'gpt'}"])
    assert capsys.readouterr().out == f"sample from it: python sample.py --init_from={tmp_path / 'gpt'}\n"
    options = ["--start=the the", "--num_samples=1", "--max_new_tokens=5", "--temperature=0", "--device=cpu"]
    sample.main([f"--init_from={tmp_path / 'gpt'}", *options])
    ids = tokenizer.encode("the the").tolist()
    for _ in range(5):
        drawn = nanogpt_logits(state, torch.tensor([ids]))[0, -1, : tokenizer.vocab_size]
        ids.append(int(drawn.argmax()))
    assert capsys.readouterr().out.startswith(tokenizer.decode(ids))


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('it ran')",))


@pytest.mark.parametrize(
    "tensors, changes, says",
    [
        ({"h.1.ln_2.weight": None}, {}, ".h.1.ln_2.weight: it is damaged"),
        ({"ln_f.weight": torch.ones(D, dtype=torch.complex64)}, {}, "numbers that are not real and finite"),
        ({}, {"model_args": ARGS | {"n_embd": 64}}, "and the model needs (65, 64)"),
        ({}, {"model_args": ARGS | {"n_layer": "two"}}, "n_layer is 'two': it should be a valid int"),
        ({}, {"model_args": ARGS | {"rotary": True}}, "rotary is not an option"),
        ({}, {"model_args": ARGS | {"n_layer": 10**8}}, "and 10000 at most can be read"),
        ({}, {"model_args": ARGS | {"window": 3}}, "no class of transformers computes this model"),
        ({}, {"model": [1]}, "no attribute 'items'"),
        ({}, {"model_args": Bomb()}, "Weights only load failed"),
    ],
)
def test_what_is_no_checkpoint_of_nanogpt_is_one_line_and_leaves_nothing(tmp_path, tensors, changes, says):
    state = state_dict(False) | {f"transformer.{name}": tensor for name, tensor in tensors.items()}
    path = save(tmp_path, {name: tensor for name, tensor in state.items() if tensor is not None}, **changes)
    said = refusal(from_nanogpt.main, [path, f"--to={tmp_path / 'gpt'}"])
    assert said.startswith(f"{path}: cannot be used (") and says in said
    assert said.endswith("give a ckpt.pt that nanoGPT's train.py wrote")
    assert [file.name for file in tmp_path.iterdir()] == ["ckpt.pt"]


def test_another_file_is_one_line(tmp_path):
    for content in (None, b"", pickle.dumps({"model": {}})):
        path = tmp_path / "ckpt.pt"
        if content is not None:
            path.write_bytes(content)
        said = refusal(from_nanogpt.main, [str(path), f"--to={tmp_path / 'gpt'}"])
        assert said.startswith(f"{path}: cannot be used (")


def test_the_command_needs_pytorch_one_file_and_a_new_folder(tmp_path, monkeypatch):
    path = save(tmp_path, state_dict(False))
    for words in ([], [path, path], ["--help"]):
        assert refusal(from_nanogpt.main, words).startswith("usage: python -m hub.from_nanogpt ckpt.pt --to=")
    assert "is there already" in refusal(from_nanogpt.main, [path, f"--to={tmp_path}"])
    monkeypatch.setitem(sys.modules, "torch", None)
    said = refusal(from_nanogpt.main, [path, f"--to={tmp_path / 'gpt'}"])
    assert said == f"{path}: PyTorch has to read it: pip install torch"
