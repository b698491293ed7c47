"""sample.py as its user meets it: what it writes, that it repeats, and what it says to a bad request.

The run it samples from is made here: a tiny model with random weights, saved as train.py saves one.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sample
from config.options import Options
from data.tokenizer import CharTokenizer
from fast import FastGPT
from runs.checkpoint import Manifest
from runs.load import load_model
from tests.helpers import refusal, save_overfitted, save_run
from tests.models import large
from training.state import create_state_around, model_config

SYMBOLS = "\n :ROMEabcdefghij"
TOKENIZER = CharTokenizer(SYMBOLS).description
TINY = Options(n_layer=1, n_head=2, n_embd=16, block_size=16, mlp="gelu", device="cpu", unroll=1)
NEW = 40  # tokens: past block_size


def save_random(folder, *, vocab_size=17, tokenizer=TOKENIZER):
    """A run's folder with a checkpoint; the weights are large, so that the text depends on the prompt."""
    return save_run(folder, random_state(vocab_size), Manifest(TINY, vocab_size, tokenizer))


def random_state(vocab_size=17):
    return create_state_around(large(model_config(TINY, vocab_size), None), TINY)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_random(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture
def write(run, capsys):
    """`write(start=..., ...)` runs sample.py's main with these options: the samples, and what stderr says."""

    def samples(out_dir=run, **options):
        options = {"out_dir": out_dir, "max_new_tokens": NEW, "num_samples": 2, "device": "cpu"} | options
        sample.main([f"--{name}={value}" for name, value in options.items()])
        printed = capsys.readouterr()
        *texts, end = printed.out.split("\n---------------\n")
        assert end == ""
        return texts, printed.err

    return samples


def error(*argv):
    """The one line that a command line ends in."""
    return refusal(sample.main, list(argv))


# --- what it writes ---------------------------------------------------------------------------------------


def test_a_token_is_one_of_the_200_likeliest_unless_it_is_said(write, tmp_path):
    symbols = "".join(map(chr, range(0x100, 0x22C)))  # 300
    many = save_random(tmp_path / "many", vocab_size=300, tokenizer=CharTokenizer(symbols).description)
    asked = dict(out_dir=many, start=symbols[0], num_samples=20, temperature=100)  # nearly uniform
    texts, _ = write(**asked)
    assert texts == write(**asked, top_k=200)[0] != write(**asked, top_k=201)[0]
    assert write(**asked, top_k=None)[0] == write(**asked, top_k=0)[0]  # nanoGPT's name for all


def test_each_sample_is_the_prompt_and_so_many_tokens_of_the_vocabulary(write):
    texts, notices = write(start="ROMEO:", num_samples=3)
    assert len(texts) == 3 and len(set(texts)) == 3
    for text in texts:
        assert text.startswith("ROMEO:") and len(text) == len("ROMEO:") + NEW and set(text) <= set(SYMBOLS)
    assert notices == ""


def test_the_file_of_a_prompt_is_read_as_the_text_of_a_data_set_is(write, run, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"\xef\xbb\xbfROMEO:\r\n")
    assert write(start=f"FILE:{path}") == write(start="ROMEO:\n")
    path.write_bytes("abc\x80".encode("latin-1"))
    said = error(f"--out_dir={run}", "--device=cpu", f"--start=FILE:{path}")
    assert said.startswith(f"{path}: not UTF-8 at byte 3: convert it, as in iconv ")
    assert "~nouser" in error(f"--out_dir={run}", "--device=cpu", "--start=FILE:~nouser/prompt.txt")
    path.unlink()
    assert "No such file" in error(f"--out_dir={run}", "--device=cpu", f"--start=FILE:{path}")


def test_a_prompt_longer_than_block_size_is_cut_with_a_notice(write):
    long = "abcdefghij" * 3
    texts, notice = write(start=long)
    assert notice == "note: of 30 tokens the model reads the last 16\n"
    short = write(start=long[-16:])[0]
    assert texts == [long[:-16] + text for text in short]


def test_padding_of_the_vocabulary_is_not_drawn(write, tmp_path):
    padded = save_random(tmp_path / "padded", vocab_size=64)
    for text in write(out_dir=padded, temperature=100.0)[0]:  # nearly uniform
        assert len(text) == 1 + NEW and set(text) <= set(SYMBOLS)


def test_the_matmuls_may_be_in_another_dtype(run):
    model, _ = load_model(sample.SampleOptions(out_dir=str(run), dtype="bfloat16"))
    assert model.how.dtype == model.blocks.attn.c_q.weight.dtype == "bfloat16"


def test_the_first_sample_appears_as_it_is_made(capsys):
    seen = []

    def chunks():
        for tokens in ([[0, 1], [2, 3]], [[4], [5]]):
            yield jnp.array(tokens)
            seen.append(capsys.readouterr().out)

    sample.write_samples(">", chunks(), CharTokenizer("abcdef"), ends=[])
    assert seen == [">ab", "e"]
    assert capsys.readouterr().out == f"\n{sample.SEPARATOR}\n>cdf\n{sample.SEPARATOR}\n"


def test_a_sample_ends_before_a_token_that_ends_it_and_the_others_go_on(write):
    texts, _ = write(num_samples=3)
    ends = [SYMBOLS.index(symbol) for symbol in "ab"]
    cut = [text[0] + re.split("[ab]", text[1:])[0] for text in texts]
    assert write(num_samples=3, stop_token_ids=",".join(map(str, ends)))[0] == cut != texts
    assert any(len(text) < len(whole) for text, whole in zip(cut, texts, strict=True))


def test_nothing_is_drawn_after_all_samples_have_ended(capsys):
    chunks = iter([np.array([[0, 1], [1, 0]]), np.array([[2], [2]]), np.array([[3], [3]])])
    sample.write_samples(">", chunks, CharTokenizer("abcdef"), ends=[2])
    assert capsys.readouterr().out == f">ab\n{sample.SEPARATOR}\n>ba\n{sample.SEPARATOR}\n"
    assert len(list(chunks)) == 1


def test_a_bias_makes_tokens_likelier_or_keeps_them_out(write):
    never, always = SYMBOLS.index("a"), SYMBOLS.index("R")
    assert "a" in "".join(write(num_samples=4, temperature=2)[0])
    assert "a" not in "".join(write(num_samples=4, temperature=2, logit_bias=f"{never}:-100")[0])
    assert write(logit_bias=f"{always}:100,{never}:-3.5")[0] == ["\n" + NEW * "R"] * 2


def test_the_checkpoint_may_be_the_best_or_that_of_an_iteration(write, run, tmp_path):
    save_overfitted(tmp_path, random_state(), Manifest(TINY, 17, TOKENIZER))
    best = write()
    assert write(out_dir=tmp_path, checkpoint="best") == write(out_dir=tmp_path, checkpoint=1) == best
    assert write(out_dir=tmp_path) == write(out_dir=tmp_path, checkpoint=2) != best


# --- bad requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument, says",
    [
        ("--num_samples=100000000", "too little memory: RESOURCE_EXHAUSTED"),
        ("--checkpoint=first", "--checkpoint is 'first': it should be a valid integer or "),
        ("--stop_token_ids=a", "--stop_token_ids is 'a': expected token ids, as in 50256,13"),
        ("--stop_token_ids=3,17", "--stop_token_ids: there is no token 17; the model's are 0 to 16"),
        ("--logit_bias=3:101", "--logit_bias is '3:101': expected -100 to 100 for tokens, as in 13:-100,"),
        ("--logit_bias=99:1", "--logit_bias: there is no token 99; the model's are 0 to 16"),
        ("--start=", "--start='': gives no token"),
        ("--start=Zoé", "--start='Zoé' (the text 'Zoé' cannot be encoded"),
    ],
)
def test_a_bad_option_is_one_line(run, argument, says):
    assert says in error(f"--out_dir={run}", "--device=cpu", argument)


def test_the_folder_of_a_run_in_place_of_weights_is_one_line(run):
    says = f"init_from={run} is the folder of a run: give --out_dir={run} instead"
    assert error(f"--init_from={run}", "--device=cpu") == says
    text = error("--init_from=gpt2", "--checkpoint=best")
    assert text == "--checkpoint=best: gpt2 is no run: use --out_dir"


def test_a_tokenizer_of_another_model_is_one_line(tmp_path):
    """Its ids are beyond the model's; those that are not are drawn all the same."""
    run = save_random(tmp_path, vocab_size=5)
    assert "that is not of the model's 5" in error(f"--out_dir={run}", "--start=j", "--device=cpu")
    sample.main([f"--out_dir={run}", "--start=R", "--device=cpu", "--max_new_tokens=3", "--num_samples=1"])


def test_a_change_of_the_models_code_is_told_and_another_dtype_is_none(write, monkeypatch):
    assert "note:" not in write(dtype="bfloat16")[1]
    monkeypatch.setattr(FastGPT, "lookup", lambda self, tokens: 4 * self.wte[tokens])
    jax.clear_caches()
    assert "the model's code has changed since it was saved: a loss of" in write()[1]
    monkeypatch.undo()
    jax.clear_caches()
