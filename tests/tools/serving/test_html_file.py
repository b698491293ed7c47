"""The page's JavaScript without a browser: a model in one HTML file against JAX and tokenizers' libraries."""

import base64
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

import export
from common.errors import UserError
from data.conversations import Renderer
from data.tokenizer import CharTokenizer, JsonTokenizer, TiktokenTokenizer
from data.train_tokenizer import save, train
from data.writer import load_tokenizer
from generation.decode import generate
from generation.sampling import GREEDY
from model import GPT, GPTConfig
from runs.load import load_run
from tests.helpers import ROOT, slowly
from tests.models import forward, large
from tests.tools.serving.conftest import save_random
from tools.inside.views import heads, lens
from tools.serving.html_file import SPLITS, conversations, html, in_javascript
from tools.serving.insight import places
from tools.serving.requests import Drawing
from tools.serving.server import PAGE
from tools.serving.text import read_prompt
from variants import without_multipliers

node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
SMALL = GPTConfig(block_size=24, vocab_size=33, n_layer=2, n_head=4, n_embd=24)
GPT2 = replace(SMALL, mlp="gelu", bias=True)
LLAMA = replace(SMALL, position="rope", norm="rmsnorm", n_kv_head=2, tie_embeddings=False)
SHAPES = {
    "gpt2": GPT2,
    "documents": replace(GPT2, document_start=3, mlp="gelu_erf"),
    "llama": replace(LLAMA, qkv_bias=True, rope_scaling=8.0, rope_theta=5e5, n_hidden=50),
    "window": replace(LLAMA, window=5, qk_norm=True, mlp="relu2", document_start=3, head_dim=6, n_kv_head=1),
}
TOKENIZER = CharTokenizer("".join(map(chr, range(65, 65 + 33))))
SCRIPTS = Path(__file__).parent / "page"
TYPES = "--allowJs --checkJs --strict false --noEmit --target esnext --module esnext".split()
TYPES += ["--moduleResolution", "bundler"]
# These flags find what a linter would.
LINT = "--noUnusedLocals --noUnusedParameters --noImplicitReturns --noFallthroughCasesInSwitch".split()
LINT += "--allowUnreachableCode false --allowUnusedLabels false".split()


def written(folder: Path, model: GPT, kept: str = "bfloat16", tokenizer=TOKENIZER) -> GPT:
    """Write the file; return the model that is in it."""
    known = {"name": "</script><b>small", "version": "iter-1", "example": [1, 2]}
    page, model = html(model, known, tokenizer, kept)
    (folder / "model.html").write_text(page)
    return model


def ask(folder: Path, *questions: tuple[str, dict]) -> list:
    """Return the answers to questions, of which each is [path, body]."""
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    words = ["node", SCRIPTS / "ask.mjs", folder / "model.html"]
    done = subprocess.run(words, input=lines, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


@pytest.mark.parametrize(
    "words",
    [["tsc", *TYPES, *LINT, *sorted(PAGE.glob("*.js"))], ["node", "--test", SCRIPTS / "logic.test.mjs"]],
    ids=["types", "logic"],
)
def test_the_modules_have_the_types_and_the_logic_that_they_say(words):
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


# --- what it computes ---------------------------------------------------------------------------------------


@node
@pytest.mark.parametrize(
    "shape, kept",
    [("gpt2", "bfloat16"), ("window", "bfloat16"), ("llama", "int8"), *slowly(("documents", "bfloat16"))],
)
def test_logits_heads_and_lens_are_those_of_jax(tmp_path, shape, kept):
    model = written(tmp_path, large(SHAPES[shape], None), kept)
    ids, (H, K) = np.random.default_rng(0).integers(0, 33, 24), (4, model.config.kv_heads)
    ids[[0, 9, 15]] = 3
    body = {"text": ids.tolist()}
    cell = body | {"layer": 1, "head": 2, "reader": 20, "read": 17}
    views = ("inside/attention", body), ("inside/cell", cell), ("inside/lens", body | {"k": 33})
    logits, attention, vectors, seen = ask(tmp_path, ("logits", body), *views)
    expected = np.asarray(forward(model, ids[None])[0])
    assert np.ptp(expected) > 5
    np.testing.assert_allclose(np.reshape(logits, expected.shape), expected, atol=1e-4)

    theirs, rows, columns = heads(model, ids), *np.tril_indices(24)
    shares = np.frombuffer(base64.b64decode(attention["weights"]), "<u2") / 65535
    assert attention["shape"] == [2, H, 24]
    np.testing.assert_allclose(shares.reshape(2, H, -1), theirs.weights[:, :, rows, columns], atol=1e-4)
    shared, query, weights = 2 * K // H, theirs.queries[1, 2, 20], theirs.weights[1, 2, 20, :21]
    keys, values = theirs.keys[1, shared, :21], theirs.values[1, shared, :21]
    named = {"query": query, "key": keys[17], "value": values[17], "scores": keys @ query / len(query) ** 0.5}
    for name, vector in (named | {"weights": weights, "output": weights @ values}).items():
        np.testing.assert_allclose(vectors[name], vector, atol=1e-4, err_msg=name)

    def by_token(tokens, probabilities):
        ordered = np.zeros((3, 24, 33))
        np.put_along_axis(ordered, np.asarray(tokens), np.asarray(probabilities), axis=-1)
        return ordered

    ours = lens(model, ids, 33)
    found = by_token(seen["likeliest"], seen["probabilities"])
    np.testing.assert_allclose(found, by_token(ours.tokens, ours.probabilities), atol=1e-4)
    for name in ("stream_norms", "attn_norms", "mlp_norms"):
        np.testing.assert_allclose(seen[name], getattr(ours, name), rtol=1e-4, err_msg=name)


@node
def test_greedy_texts_are_those_of_jax(tmp_path):
    model = written(tmp_path, large(SHAPES["window"], None))
    prompts = np.random.default_rng(0).integers(0, 33, (100, 5))
    drawn = generate(model, prompts, key=jax.random.key(0), max_new_tokens=40, settings=GREEDY)
    settings = {"temperature": 0, "top_k": None, "top_p": 1, "seed": 1, "max_tokens": 40}
    asked = [("write", {"prompt": prompt, **settings}) for prompt in prompts.tolist()]
    expected = np.concatenate(list(drawn), axis=1)  # 45 tokens, in a context of 24
    assert ask(tmp_path, *asked) == expected.tolist()


@node
def test_a_model_in_mup_computes_the_same_without_its_multipliers(tmp_path):
    shape = {"n_head": 2, "n_embd": 24, "mup_base_width": 8, "block_size": 24, "qk_norm": True}
    run = save_random(tmp_path / "run", TOKENIZER, **shape)
    export.main([f"--out_dir={run}", f"--to={tmp_path / 'model.html'}", "--format=html"])
    ids = np.arange(24)
    [logits] = ask(tmp_path, ("logits", {"text": ids.tolist()}))
    plain = without_multipliers(load_run(str(run))[0])  # see test_export.py
    model = written(tmp_path, plain)  # as it is in bfloat16
    expected = np.asarray(forward(model, ids[None])[0])
    np.testing.assert_allclose(np.reshape(logits, expected.shape), expected, atol=1e-4)


# --- drawing ------------------------------------------------------------------------------------------------


@node
def test_what_could_stand_at_each_place_is_the_servers_answer(tmp_path):
    model = written(tmp_path, large(LLAMA, None))
    ids = np.random.default_rng(0).integers(0, 33, 60)  # two and a half contexts
    drawings = [
        {"temperature": temperature, "top_k": k, "top_p": p}
        for temperature, k, p in ((1, 0, 1), (0, 0, 1), (0.5, 5, 1), (1.7, 0, 0.6), (0.9, 12, 0.7))
    ]
    asked = [{"text": ids.tolist(), "prompt": prompt} | x for x in drawings for prompt in (0, 30)]
    for body, found in zip(asked, ask(tmp_path, *(("inside/places", x) for x in asked)), strict=True):
        drawing = Drawing(**{name: body[name] for name in drawings[0]})
        expected = places(model, ids, body["prompt"], drawing)
        seen = [place for place in found["places"] if place]
        assert len(seen) == len(expected.before) and len(found["places"]) == 61
        for name in ("likeliest_before", "likeliest_after"):
            ours, theirs = [place[name] for place in seen], getattr(expected, name)
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        for name in ("before", "after"):
            ours, theirs = [place[name] for place in seen[:-1]], getattr(expected, name)[:-1]
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@node
def test_tokens_are_drawn_as_likely_as_they_are_and_the_same_by_the_same_seed(tmp_path):
    written(tmp_path, large(GPT2, None))
    body = {"prompt": [5, 2], "temperature": 0.9, "top_k": 6, "top_p": 0.95, "max_tokens": 1}
    n = 4000
    *drawn, seen = ask(
        tmp_path,
        *(("write", body | {"seed": seed}) for seed in range(n)),
        ("inside/places", body | {"text": [5, 2], "prompt": 0}),
    )
    place = seen["places"][-1]
    counts = np.bincount(np.ravel(drawn), minlength=33)
    expected = np.zeros(33)
    expected[place["likeliest"]] = place["likeliest_after"]
    assert (counts[expected == 0] == 0).all() and (expected > 0.01).sum() > 2
    assert (np.abs(counts - n * expected) < 5 * np.sqrt(n * expected) + 1).all()
    long = body | {"max_tokens": 60, "seed": 7}
    first, again, other = ask(tmp_path, ("write", long), ("write", long), ("write", long | {"seed": 8}))
    assert first == again != other and len(first) == 60


# --- text ---------------------------------------------------------------------------------------------------

TEXTS = [
    "the cat, the theatre; 'tis 1234567 don't\n\n  two  spaces\t\r\n end  ",
    "naïve Ω 漢字 🤖👩‍👩‍👧 \u00a0no-break\u0085next line\ufeffmark\u2003em  ",
    "<|endoftext|>the<|endoftext|> <|endof",
    "x" * 300 + "\u0301" + " " * 40,
    "a\n\n\n\nb\n<a><b><a>x<a>x<ab",
    "it'S 'ſ we'LL 'Ta [ss] [  ] 12345ac.\n\n x",
]


def byte_pairs(words: str, **options) -> tokenizers.Tokenizer:
    """A tokenizer of bytes whose words a regular expression finds."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], **options))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(words), "isolated")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def as_llamas() -> JsonTokenizer:
    """One that looks a word up before it merges, and puts a token before a text."""
    tokenizer = byte_pairs(SPLITS[0], ignore_merges=True)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|endoftext|>"])
    begin = [("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
    template = tokenizers.processors.TemplateProcessing(single="<|begin|> $A", special_tokens=begin)
    tokenizer.post_processor = template
    return JsonTokenizer(tokenizer.to_str())


def as_qwens() -> JsonTokenizer:
    """One with added tokens that overlap."""
    tokenizer = byte_pairs(SPLITS[1])
    tokenizer.add_tokens(["\n", "\n\n", "\n\n\n", "x<a"])  # looked for after the special ones
    tokenizer.add_special_tokens(["<a>", "<a><b>"])
    return JsonTokenizer(tokenizer.to_str())


def as_ours() -> JsonTokenizer:
    return JsonTokenizer(train(iter(TEXTS), 300).to_str())


def gpt2s() -> TiktokenTokenizer:
    if "TIKTOKEN_CACHE_DIR" not in os.environ:
        pytest.skip("needs tiktoken's files of GPT-2")
    return TiktokenTokenizer("gpt2")


@node
@pytest.mark.parametrize("kind", [as_ours, as_llamas, as_qwens, gpt2s])
def test_texts_become_the_tokens_of_the_library_and_tokens_the_text(tmp_path, kind):
    tokenizer = kind()
    written(tmp_path, large(replace(GPT2, vocab_size=tokenizer.vocab_size), None), tokenizer=tokenizer)
    texts = [*TEXTS, "<|begin|>the end"]
    *answers, half = ask(tmp_path, *(("inside/tokens", {"text": text}) for text in [*texts, "a\ud83d"]))
    for text, found in zip(texts, answers, strict=True):
        ids = [token["id"] for token in found["tokens"]]
        assert ids == tokenizer.encode(text, add_special_tokens="before").tolist()
        spelled, tokens = read_prompt(tokenizer, np.array(ids))
        assert [token["text"] for token in found["tokens"]] == [spelled[x.start : x.end] for x in tokens]
    assert half["error"] == "The text has half of a character: take it out."


@node
def test_a_character_that_the_model_lacks_is_named(tmp_path):
    written(tmp_path, large(GPT2, None))
    good, bad, high = ask(tmp_path, *(("inside/tokens", {"text": text}) for text in ("ABC", "AΩ", [33])))
    assert [token["id"] for token in good["tokens"]] == [0, 1, 2]
    assert bad["error"] == 'The vocabulary of 33 lacks "Ω".' and "no tokens" in high["error"]


@node
@pytest.mark.parametrize("begins", [True, False])
def test_a_conversation_has_the_servers_prompt(tmp_path, begins):
    save(train(iter(TEXTS), 300), tmp_path)
    template = (ROOT / "data/chat.jinja").read_text()
    own = template if begins else template.replace("{{- bos_token or '' -}}", "")
    renderer = Renderer(Renderer(load_tokenizer(str(tmp_path)), own).learned())
    model = large(replace(GPT2, vocab_size=renderer.tokenizer.vocab_size, block_size=200), None)
    written(tmp_path, model, tokenizer=renderer.tokenizer)
    said = [
        {"role": role, "content": f" {role}, <|im_end|> "} for role in "system user assistant user".split()
    ]
    chats = said, said[1:], said[1:2], [*said, *said[2:]], [*said, *10 * said[2:]], [*9 * said[1:3], said[1]]
    for messages, found in zip(
        chats, ask(tmp_path, *(("inside/chat", {"messages": x}) for x in chats)), strict=True
    ):
        ids, left_out = renderer.newest(messages, 200)
        assert [token["id"] for token in found["tokens"]] == ids.tolist()
        assert found["messages_left_out"] == left_out
    assert all(renderer.newest(messages, 200)[1] > 0 for messages in chats[-2:])


EACH = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% if strftime_now %}{{ strftime_now('%Y') }}{% endif %}" + EACH,
        # One that changes what is said.
        *(EACH.replace(" }}{%", change + " }}{%") for change in ("|trim", ".split('</think>')[-1]")),
        # One beside which what is said may become the name of a token, <|im_end|>.
        *(EACH.replace("[{{ m['role'] }}]", before) for before in ("", "<|im_")),
        EACH.replace("[{{ m['role'] }}]", "").replace("{% endfor", "|>{% endfor"),
    ],
)
def test_no_template_is_followed_that_does_more_than_join(template):
    def followed(template):
        renderer = Renderer(TOKENIZER, template)
        renderer.tokenizer = SimpleNamespace(names=("<|im_end|>", "\n"))
        return conversations(renderer)

    assert followed(EACH)
    with pytest.raises(UserError, match="serve.py"):
        followed(template)


def test_a_tokenizer_of_another_kind_is_refused():
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram([("a", 0.0), ("<unk>", -1.0)], unk_id=1))
    prefixed = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    prefixed.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    for other in (unigram, prefixed, byte_pairs(r"\w+")):
        with pytest.raises(UserError, match="with rules of its own: .* serve.py"):
            in_javascript(JsonTokenizer(other.to_str()))


# --- the file -----------------------------------------------------------------------------------------------


def test_int8_is_within_half_a_step_and_vectors_are_as_they_were(tmp_path):
    model = large(GPT2, None)
    for kept, bound in (("bfloat16", 2**-8), ("int8", 1 / 254)):
        there = written(tmp_path, model, kept)
        most = jnp.abs(model.wte).max(-1, keepdims=True) if kept == "int8" else jnp.abs(model.wte)
        assert 0 < (jnp.abs(there.wte - model.wte) / most).max() <= bound * 1.001
        assert (there.ln_f.weight == model.ln_f.weight).all()
        assert (there.blocks.attn.c_q.bias == model.blocks.attn.c_q.bias).all()


@node
@pytest.mark.parametrize("damage", ["cut", "changed", "config"])
def test_a_damaged_file_says_so_in_a_line(tmp_path, damage):
    written(tmp_path, large(GPT2, None))
    page = (tmp_path / "model.html").read_text()
    at = page.index('id="weights">') + 500
    changed = {
        "cut": page[:at] + page[page.index("</script>", at) :],
        "changed": page[:at] + ("A" if page[at] != "A" else "B") + page[at + 1 :],
        "config": page.replace('"n_layer": 2', '"n_layer": 200000000'),
    }
    (tmp_path / "model.html").write_text(changed[damage])
    [found] = ask(tmp_path, ("inside/model", {}))
    assert re.fullmatch(r"This file is damaged \(.{1,80}\): get it again\.", found["error"])


def test_no_text_of_the_model_is_markup(tmp_path):
    written(tmp_path, large(GPT2, None))
    page = (tmp_path / "model.html").read_text()
    assert "</script><b>small" not in page and page.count("<script") == page.count("</script>") == 4
    assert "connect-src" not in page and "default-src 'none'" in page and "unsafe" not in page
