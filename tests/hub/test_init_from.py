"""train.py and sample.py from weights in Hugging Face's format: `--init_from=<a folder>`."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import torch

import sample
import train
from config.command_line import UserError
from config.options import Options
from data.loader import NANOGPT
from model import GPTConfig
from runs.checkpoint import arrays_by_name
from runs.load import load_run
from tests.reference import as_gpt, gpt2, random_reference

ROOT = Path(train.__file__).parent
# The changes of these runs are far below float32's rounding of their weights, which are about 0.1.
STILL = dict(learning_rate=1e-20, min_lr=1e-20, eval_interval=1, max_iters=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of GPT-2: 3 layers, 4 heads, width 48, 16 positions, 65 tokens."""
    folder = tmp_path_factory.mktemp("gpt2")
    random_reference("gpt2").save_pretrained(folder)
    return folder


@pytest.fixture
def command_line(tiny_data, folder):
    def line(out, **changes):
        options = dict(
            out_dir=out, init_from=folder, dataset=tiny_data, device="cpu", mesh="data:1", batch_size=4,
            gradient_accumulation_steps=1, warmup_iters=0, eval_iters=2,
        )  # fmt: skip
        return [f"--{name}={value}" for name, value in (options | changes).items()]

    return line


def refusal(main, argv):
    with pytest.raises(UserError) as caught:
        main(argv)
    text = str(caught.value)
    assert "\n" not in text
    return text


def losses(out):
    lines = map(json.loads, (Path(out) / "metrics.jsonl").read_text().splitlines())
    return [line["val/loss"] for line in lines if "val/loss" in line]


def test_training_starts_from_the_weights_and_goes_on_as_any_run_does(command_line, tmp_path):
    train.main(command_line(tmp_path / "out", **STILL))
    model, _, iteration = load_run(str(tmp_path / "out"))
    expected = arrays_by_name(as_gpt("gpt2", dict(random_reference("gpt2").named_parameters())))
    assert iteration == 2
    for name, array in arrays_by_name(model).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)

    options = json.loads((tmp_path / "out" / "options.json").read_text())
    assert (options["n_layer"], options["vocab_size"], options["bias"], options["mlp"]) == (
        3,
        65,
        True,
        "gelu",
    )
    more = dict(learning_rate=1e-2, min_lr=1e-2, max_iters=12)
    train.main(
        [f"--out_dir={tmp_path / 'out'}", "--init_from=resume", *(f"--{k}={v}" for k, v in more.items())]
    )
    assert load_run(str(tmp_path / "out"))[2] == 12
    assert losses(tmp_path / "out")[-1] < losses(tmp_path / "out")[0]


def test_the_loss_at_the_start_is_that_of_transformers(command_line, tiny_data, tmp_path, capsys):
    train.main(command_line(tmp_path / "out", eval_only=True, eval_iters=-1, dropout=0.5))
    tokens = torch.tensor(np.fromfile(tiny_data / "val.bin", np.uint16).astype(np.int64))
    reference, T = random_reference("gpt2"), 16
    with torch.no_grad():
        losses = []
        for i in range(0, len(tokens) - 1, T):
            x, y = tokens[:-1][i : i + T], tokens[1:][i : i + T]
            losses.append(
                torch.nn.functional.cross_entropy(reference(x[None]).logits[0], y, reduction="none")
            )
    out, err = capsys.readouterr()
    assert f"note: dataset={tiny_data} is not of " in err  # whose tokens are characters
    printed = float(out.split("val loss ")[1])
    assert printed == pytest.approx(float(torch.cat(losses).mean()), abs=1e-4)  # of four digits, and rounding


def test_a_smaller_block_size_crops_the_positions(command_line, tmp_path):
    train.main(command_line(tmp_path / "out", block_size=8, **STILL))
    model, _, _ = load_run(str(tmp_path / "out"))
    expected = random_reference("gpt2").transformer.wpe.weight.detach().numpy()[:8]
    np.testing.assert_array_equal(model.wpe, expected)


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(n_layer=4), "n_layer=4, but {folder} has n_layer=3: leave it out"),
        (dict(bias=False), "bias=False, but {folder} has bias=True: leave it out"),
        (dict(block_size=17), "block_size=17, but {folder} has block_size=16: leave it out, or give fewer"),
        (dict(init_from="nowhere"), "init_from=nowhere: there is no such folder"),
        (dict(init_from="gpt3"), "init_from=gpt3: there is no such folder"),
    ],
)
def test_what_contradicts_the_weights_is_refused(command_line, folder, tmp_path, changes, says):
    text = refusal(train.main, command_line(tmp_path / "out", **changes))
    assert says.format(folder=folder) in text
    assert list(tmp_path.iterdir()) == []


def test_data_with_more_tokens_than_the_model_knows_are_refused(command_line, tmp_path):
    gpt2(
        GPTConfig(vocab_size=27, block_size=16, n_layer=1, n_head=1, n_embd=8, mlp="gelu", bias=True)
    ).save_pretrained(tmp_path / "small")
    text = refusal(train.main, command_line(tmp_path / "out", init_from=tmp_path / "small"))
    assert "has a vocabulary of 28 tokens, and the model one of 27" in text


def test_nanogpts_padded_vocabulary_fits_gpt2():
    vocabulary = train.vocabulary(replace(Options(), vocab_size=50257), NANOGPT)
    assert (vocabulary, train.vocabulary(Options(), NANOGPT)) == (50257, 50304)
    with pytest.raises(UserError, match="a vocabulary of 50257 tokens, and the model one of 50256"):
        train.vocabulary(replace(Options(), vocab_size=50256), NANOGPT)


def test_a_run_is_not_lost_to_new_weights(command_line, tmp_path):
    train.main(command_line(tmp_path, **STILL))
    assert "holds a run (iter 2)" in refusal(train.main, command_line(tmp_path))


def test_without_a_network_the_command_ends_in_one_line(command_line, tmp_path):
    done = subprocess.run(
        [sys.executable, "train.py", *command_line(tmp_path / "out", init_from="gpt2")],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr.startswith("error: init_from=gpt2: openai-community/gpt2")
        and done.stderr.count("\n") == 1
    )


def test_sample_writes_what_transformers_finds_likeliest(tmp_path, monkeypatch, capsys):
    encoding = tiktoken.Encoding(  # of GPT-2's name, with a token per byte, so that no file is needed
        "gpt2", pat_str=r"\S+|\s+", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: encoding)
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=50257, block_size=64, n_layer=2, n_head=2, n_embd=8, mlp="gelu", bias=True)
    reference = gpt2(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
        tokens = list(b"ROMEO:")
        for _ in range(12):
            tokens.append(int(reference(torch.tensor([tokens])).logits[0, -1, :256].argmax()))
    reference.save_pretrained(tmp_path)
    options = dict(
        init_from=tmp_path, start="ROMEO:", temperature=0, num_samples=1, max_new_tokens=12, device="cpu"
    )
    sample.main([f"--{name}={value}" for name, value in options.items()])
    assert capsys.readouterr().out == f"{bytes(tokens).decode(errors='replace')}\n{sample.SEPARATOR}\n"


def test_weights_without_a_tokenizer_cannot_write(folder):
    assert "it has no tokenizer that can be read here" in refusal(sample.main, [f"--init_from={folder}"])
