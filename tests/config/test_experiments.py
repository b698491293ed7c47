"""The experiments in config/: each can be trained and has the size it says; nanoGPT's have its values."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.command_line import given
from config.options import Options, parse_options
from runs.metrics import count_parameters
from training.state import model_config

CONFIG = Path(__file__).parents[2] / "config"
EXPERIMENTS = sorted(path.stem for path in CONFIG.glob("[!_]*.py") if path.stem != "options")
GPT2_SIZES = {"eval_gpt2": "gpt2", "eval_gpt2_medium": "gpt2-medium"}
GPT2_SIZES |= {"eval_gpt2_large": "gpt2-large", "eval_gpt2_xl": "gpt2-xl"}

NANOGPT = {
    "train_gpt2": dict(batch_size=12, block_size=1024, gradient_accumulation_steps=40, mlp="gelu")
    | dict(max_iters=600000, lr_decay_iters=600000, eval_interval=1000, eval_iters=200, weight_decay=0.1),
    "finetune_shakespeare": dict(batch_size=1, gradient_accumulation_steps=32, learning_rate=3e-5)
    | dict(max_iters=20, eval_interval=5, eval_iters=40, decay_lr=False, always_save_checkpoint=False),
} | dict.fromkeys(GPT2_SIZES, dict(batch_size=8, eval_iters=500, eval_only=True))
BABY = (
    "out_dir=out-shakespeare-char eval_interval=250 log_interval=10 always_save_checkpoint=False "
    "wandb_project=shakespeare-char wandb_run_name=mini-gpt dataset=shakespeare_char "
    "gradient_accumulation_steps=1 batch_size=64 block_size=256 n_layer=6 n_head=6 n_embd=384 dropout=0.2 "
    "learning_rate=1e-3 max_iters=5000 lr_decay_iters=5000 min_lr=1e-4 beta2=0.99 warmup_iters=100"
)
BABY_ON_A_CPU = (  # nanoGPT's README
    "eval_iters=20 log_interval=1 block_size=64 batch_size=12 n_layer=4 n_head=4 n_embd=128 "
    "max_iters=2000 lr_decay_iters=2000 dropout=0.0 out_dir=out-shakespeare-char-cpu"
)


def words(name):
    """The command line of an experiment; where its weights are from is for `init_from` to know."""
    return [str(CONFIG / f"{name}.py"), "--init_from=scratch"]


def values(name):
    return given(words(name), Options)


def options(name):
    return parse_options(words(name))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_makes_a_model_names_its_data_and_reaches_the_end_of_its_schedule(name):
    found = options(name)
    assert "dataset" in values(name)
    assert name == "my_text" or (CONFIG.parent / "data" / found.dataset / "prepare.py").is_file()
    assert model_config(found, vocab_size=50304).n_layer == found.n_layer  # no UserError
    if name not in GPT2_SIZES:
        assert found.eval_interval <= found.max_iters and found.max_iters % found.eval_interval == 0
        if found.decay_lr:
            assert found.warmup_iters < found.lr_decay_iters == found.max_iters
            assert found.min_lr == pytest.approx(found.learning_rate / 10)


def test_no_two_experiments_share_a_folder():
    folders = [values(name)["out_dir"] for name in EXPERIMENTS if name not in GPT2_SIZES]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize(
    "name, vocab_size, parameters, tokens",  # as the config files say, and nanoGPT's README of the baby GPT
    [
        ("train_gpt2", 50257, 124e6, 300e9),
        ("train_gpt2_fineweb", 50257, 124e6, 9.8e9),
        ("train_llama_125m", 50257, 124e6, 9.8e9),
        ("train_llama_1b", 50257, 1.317e9, 26.2e9),
        ("train_shakespeare_char", 65, 10.7e6, 82e6),
        ("train_tinystories", 50257, 51e6, 655e6),
    ],
)
def test_the_sizes_are_as_documented(name, vocab_size, parameters, tokens):
    found = options(name)
    assert count_parameters(model_config(found, vocab_size)) == pytest.approx(parameters, rel=0.01)
    assert found.max_iters * found.tokens_per_step == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize("name", NANOGPT)
def test_nanogpts_experiments_have_nanogpts_values(name):
    assert NANOGPT[name].items() <= values(name).items()


def test_the_baby_gpts_set_what_nanogpts_set_and_nothing_else():
    baby, cpu = ([f"--{word}" for word in words.split()] for words in (BABY, BABY_ON_A_CPU))
    assert options("train_shakespeare_char") == parse_options(baby)
    found = options("train_shakespeare_char_cpu")
    names = {"wandb_project": found.wandb_project, "wandb_run_name": found.wandb_run_name}
    assert found == replace(parse_options(baby + cpu), **names)


@pytest.mark.parametrize("name, weights", [*GPT2_SIZES.items(), ("finetune_shakespeare", "gpt2-xl")])
def test_each_run_from_given_weights_asks_for_the_right_ones(name, weights):
    shape_of = Mock(return_value={"n_layer": 48, "vocab_size": 50257})
    found = parse_options(words(name)[:1], shape_of)
    shape_of.assert_called_once_with(weights)
    assert found == replace(options(name), init_from=weights, **shape_of.return_value)
