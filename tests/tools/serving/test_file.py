"""A model in one HTML file: page/model.js against JAX, without a browser. test_page.py opens such files in one."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.tokenizer import CharTokenizer
from generation.decode import GREEDY, generate
from model import GPT, GPTConfig
from tools.inside.views import heads, lens
from tools.serving.chat import Chat
from tools.serving.file import html

node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
SMALL = GPTConfig(block_size=24, vocab_size=33, n_layer=2, n_head=4, n_embd=24)
GPT2 = replace(SMALL, mlp="gelu", bias=True)
LLAMA = replace(SMALL, position="rope", norm="rmsnorm", n_kv_head=2, tie_embeddings=False)
SHAPES = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "documents": replace(GPT2, document_start=3, mlp="gelu_erf"),
    "window": replace(LLAMA, window=5, qk_norm=True, mlp="relu2", document_start=3, head_dim=6, n_kv_head=1),
    "qwen": replace(
        LLAMA, qkv_bias=True, rope_scaling=8.0, rope_theta=5e5, n_kv_head=4, n_hidden=50, mlp="swiglu"
    ),
}
TOKENIZER = CharTokenizer("".join(map(chr, range(65, 65 + 33))))


def random_model(config: GPTConfig) -> GPT:
    """A model whose weights, biases too, are so large that predictions differ."""
    leaves, tree = jax.tree.flatten(GPT(config, key=jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    made = [x + 0.2 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, made)


def written(folder: Path, model: GPT, kept: str = "bfloat16", tokenizer=TOKENIZER, chat=None) -> GPT:
    """Write the file; return the model that is in it."""
    known = {"name": "</script><b>small", "version": "iter-1", "example": [1, 2]}
    page, model = html(model, known, tokenizer, chat or Chat(tokenizer.description), kept)
    (folder / "model.html").write_text(page)
    return model


def ask(folder: Path, *questions: tuple[str, dict]) -> list:
    """Return the answers to questions, of which each is [path, body]."""
    script = Path(__file__).parent / "page" / "ask.mjs"
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    words = ["node", str(script), str(folder / "model.html")]
    done = subprocess.run(words, input=lines, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@node
@pytest.mark.parametrize("kept", ["bfloat16", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_heads_and_lens_are_those_of_jax(tmp_path, shape, kept):
    model = written(tmp_path, random_model(SHAPES[shape]), kept)
    ids, (H, K) = np.random.default_rng(0).integers(0, 33, 24), (4, model.config.kv_heads)
    ids[[0, 9, 15]] = 3
    body = {"text": ids.tolist()}
    cell = body | {"layer": 1, "head": 2, "reader": 20, "read": 17}
    found = ask(tmp_path, ("logits", body), ("inside/attention", body), ("inside/lens", body | {"k": 33}))
    logits, attention, seen = found
    expected = np.asarray(model(jnp.asarray(ids)[None])[0])
    assert np.ptp(expected) > 5
    np.testing.assert_allclose(np.reshape(logits, expected.shape), expected, atol=1e-4)

    theirs, rows, columns = heads(model, ids), *np.tril_indices(24)
    shares = np.frombuffer(__import__("base64").b64decode(attention["weights"]), "<u2") / 65535
    assert attention["shape"] == [2, H, 24]
    np.testing.assert_allclose(shares.reshape(2, H, -1), theirs.weights[:, :, rows, columns], atol=1e-4)
    [vectors] = ask(tmp_path, ("inside/cell", cell))
    upto, shared = slice(21), 2 * K // H
    query, keys, values = (
        theirs.queries[1, 2, 20],
        theirs.keys[1, shared, upto],
        theirs.values[1, shared, upto],
    )
    weights = theirs.weights[1, 2, 20, upto]
    scores = keys @ query / len(query) ** 0.5
    named = {
        "query": query,
        "key": keys[17],
        "value": values[17],
        "weights": weights,
        "output": weights @ values,
    }
    for name, vector in (named | {"scores": scores}).items():
        np.testing.assert_allclose(vectors[name], vector, atol=1e-4, err_msg=name)

    ours = lens(model, ids, 33)
    probabilities = np.zeros_like(ours.probabilities), np.zeros_like(ours.probabilities)
    for to, tokens, p in zip(
        probabilities,
        (ours.tokens, seen["likeliest"]),
        (ours.probabilities, seen["probabilities"]),
        strict=True,
    ):
        np.put_along_axis(to, np.asarray(tokens), np.asarray(p), axis=-1)
    np.testing.assert_allclose(*probabilities, atol=1e-4)
    for name in ("stream_norms", "attn_norms", "mlp_norms"):
        np.testing.assert_allclose(seen[name], getattr(ours, name), rtol=1e-4, err_msg=name)


@node
@pytest.mark.parametrize("shape", ["llama", "window"])
def test_a_thousand_greedy_texts_are_those_of_jax(tmp_path, shape):
    model = written(tmp_path, random_model(SHAPES[shape]))
    prompts = np.random.default_rng(0).integers(0, 33, (1000, 5))
    drawn = generate(model, prompts, key=jax.random.key(0), max_new_tokens=40, settings=GREEDY)
    settings = {"temperature": 0, "top_k": None, "top_p": 1, "seed": 1, "max_tokens": 40}
    asked = [("write", {"prompt": prompt, **settings}) for prompt in prompts.tolist()]
    assert (
        ask(tmp_path, *asked) == np.concatenate(list(drawn), axis=1).tolist()
    )  # 45 tokens, in a context of 24
