"""train.py and sample.py from weights in Hugging Face's format: `--init_from=<a folder>`."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import evaluate
import sample
import train
from model import GPTConfig
from tests.helpers import flags, refusal
from tests.pretrained import END, START, library_tokenizer, prepare_texts, save_llama, save_tokenizer
from tests.reference import gpt2, random_reference

SMALL = dict(block_size=16, n_layer=1, n_head=1, n_embd=8, mlp="gelu", bias=True)
TEXTS = [f"the story of {i}: €\n" + "and the other\n" * (i % 5) for i in range(60)]  # documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of GPT-2: 3 layers, 4 heads, width 48, 16 positions, 65 tokens."""
    folder = tmp_path_factory.mktemp("gpt2")
    random_reference("gpt2").save_pretrained(folder)
    return folder


@pytest.fixture
def command_line(tiny_data, folder):
    def line(out, **changes):
        options = dict(out_dir=out, init_from=folder, dataset=tiny_data, device="cpu", mesh="data:1")
        options |= dict(batch_size=4, gradient_accumulation_steps=1, warmup_iters=0, eval_iters=2, unroll=1)
        return flags(options, **changes)

    return line


def test_the_loss_at_the_start_is_that_of_transformers(command_line, tiny_data, folder, tmp_path, capsys):
    train.main(command_line(tmp_path / "out", eval_only=True, eval_iters=-1, dropout=0.5))
    tokens = torch.tensor(np.fromfile(tiny_data / "val.bin", np.uint16).astype(np.int64))
    reference, T = random_reference("gpt2"), 16
    with torch.no_grad():
        nll = []
        for i in range(0, len(tokens) - 1, T):
            x, y = tokens[:-1][i : i + T], tokens[1:][i : i + T]
            nll.append(torch.nn.functional.cross_entropy(reference(x[None]).logits[0], y, reduction="none"))
    out, err = capsys.readouterr()
    assert f"note: {folder} is not known to have learned the tokens of dataset=" in err
    printed = float(out.split("val loss ")[1])
    assert printed == pytest.approx(float(torch.cat(nll).mean()), abs=1e-4)  # of four digits, and rounding


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(n_layer=4), "n_layer=4, but {folder} has n_layer=3: leave it out, in a config too"),
        (dict(mup_base_width=4), "mup_base_width=4, but {folder} has mup_base_width=0: leave it out"),
        (dict(block_size=17), "block_size=17, but {folder} has block_size=16: leave it out"),
    ],
)
def test_what_contradicts_the_weights_is_refused(command_line, folder, tmp_path, changes, says):
    text = refusal(train.main, command_line(tmp_path / "out", **changes))
    assert says.format(folder=folder) in text
    assert list(tmp_path.iterdir()) == []


def test_data_with_more_tokens_than_the_model_knows_are_refused(command_line, tmp_path):
    gpt2(GPTConfig(vocab_size=27, **SMALL)).save_pretrained(tmp_path / "small")
    text = refusal(train.main, command_line(tmp_path / "out", init_from=tmp_path / "small"))
    assert "has a vocabulary of 28 tokens, and the model one of 27" in text


def test_sample_continues_as_generate_does_without_the_token_that_begins_a_text(tmp_path, capsys):
    """With it: the next test, and tools/serving/test_pretrained.py."""
    reference, tokenizer = save_llama(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("the other", return_tensors="pt", add_special_tokens=False).input_ids
    with torch.no_grad():
        found = reference.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None)[0]
    options = dict(init_from=tmp_path, start="the other", temperature=0, num_samples=1, max_new_tokens=10)
    sample.main(flags(options, device="cpu", add_special_tokens=False))
    new = tokenizer.decode(found[ids.shape[1] :])
    assert capsys.readouterr().out == f"the other{new}\n{sample.SEPARATOR}\n"


def test_sample_does_not_go_on_after_an_end_that_the_tokenizer_puts(tmp_path, capsys):
    save_llama(tmp_path)
    save_tokenizer(tmp_path, library_tokenizer("<s> $A [END]"))
    words = ["--start=the other", "--prompt_logprobs=True", "--num_samples=1", "--max_new_tokens=1"]
    sample.main([f"--init_from={tmp_path}", "--device=cpu", *words])
    logprobs = capsys.readouterr().out.split(f"{sample.SEPARATOR}\n")[0]
    assert "'<s>'" in logprobs and "[END]" not in logprobs


def test_data_of_a_gpt2s_own_tokenizer_is_known_to_it(tmp_path, capsys):
    """A GPT-2 of OpenAI's vocabulary size, and another's tokens."""
    model = gpt2(GPTConfig(vocab_size=50257, **SMALL))
    model.config.eos_token_id = END
    model.save_pretrained(german := tmp_path / "german")
    library_tokenizer(None).save(str(german / "tokenizer.json"))
    data = prepare_texts(tmp_path, german / "tokenizer.json", TEXTS)
    words = [f"--init_from={german}", f"--dataset={data}", "--device=cpu"]
    options = dict(eval_only=True, mesh="data:1", batch_size=2, gradient_accumulation_steps=1, eval_iters=1)
    train.main(words + flags(options))
    assert "not known to have learned" not in capsys.readouterr().err
    evaluate.main([*words, f"--json={tmp_path / 'result.json'}"])
    assert json.loads((tmp_path / "result.json").read_text())["tokens"] > 100


@pytest.mark.slow
def test_the_token_that_begins_documents_has_no_bytes_and_may_be_left_out(tmp_path):
    save_llama(tmp_path / "llama")
    data = prepare_texts(tmp_path, tmp_path / "llama", TEXTS)

    def evaluated(**more):
        options = dict(init_from=tmp_path / "llama", dataset=data, device="cpu", mesh="data:1")
        evaluate.main(flags(options, json=tmp_path / "result.json", **more))
        return json.loads((tmp_path / "result.json").read_text())

    result, without = evaluated(), evaluated(add_special_tokens=False)
    ids = np.fromfile(data / "val.bin", "<u2").tolist()
    starts = [i for i, token in enumerate(ids) if token == START]
    rows = [ids[i:j] for i, j in zip(starts, [*starts[1:], None], strict=True)]
    encoded = {(*library_tokenizer().encode(text).ids, END): text for text in TEXTS}
    assert result["bytes"] == sum(len(encoded[tuple(row)].encode()) for row in rows)
    assert result["tokens"] == without["tokens"] + len(starts)
    assert result["bytes"] == without["bytes"] + len("the")  # the first token now, which is not predicted


def test_weights_without_a_tokenizer_write_nothing_and_are_not_evaluated_on_a_text(folder, tiny_data):
    assert "its tokens are not text" in refusal(sample.main, [f"--init_from={folder}"])
    text = refusal(evaluate.main, [f"--init_from={folder}", f"--dataset={tiny_data}", "--device=cpu"])
    assert "has another tokenizer than the model" in text and "without tokenizer.json" in text
