"""The experiments in config/: each can be trained and has the size it says; nanoGPT's have its values."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import pytest

from common.command_line import given
from config.options import Options, parse_options
from model import GPT
from training.state import model_config

CONFIG = Path(__file__).parents[2] / "config"
CODE = {"command_line", "devices", "files", "options"}
EXPERIMENTS = sorted({path.stem for path in CONFIG.glob("[!_]*.py")} - CODE)
GPT2_SIZES = {"eval_gpt2": "gpt2", "eval_gpt2_medium": "gpt2-medium"}
GPT2_SIZES |= {"eval_gpt2_large": "gpt2-large", "eval_gpt2_xl": "gpt2-xl"}

NANOGPT = {
    "train_gpt2": dict(batch_size=12, block_size=1024, gradient_accumulation_steps=40, mlp="gelu")
    | dict(max_iters=600000, lr_decay_iters=600000, eval_interval=1000, eval_iters=200, weight_decay=0.1),
    "finetune_shakespeare": dict(batch_size=1, gradient_accumulation_steps=32, learning_rate=3e-5)
    | dict(max_iters=20, eval_interval=5, eval_iters=40, decay_lr=False, always_save_checkpoint=False),
} | dict.fromkeys(GPT2_SIZES, dict(batch_size=8, eval_iters=500, eval_only=True))


def path(name):
    return str(CONFIG / f"{name}.py")


def values(name):
    """What a config file sets; where its weights are from is for `init_from` to know."""
    return given([path(name), "--init_from=scratch"], Options)


def options(name, *argv):
    """The options of an experiment whose weights are, for this, not given."""
    return parse_options([path(name), "--init_from=scratch", *argv])


def tokens_of_a_step(options):
    return options.gradient_accumulation_steps * options.batch_size * options.block_size


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_sets_options_that_make_a_model_and_names_a_data_set_that_can_be_made(name):
    found = options(name)
    assert "dataset" in values(name)
    assert (CONFIG.parent / "data" / found.dataset / "prepare.py").is_file()
    assert model_config(found, vocab_size=50304).n_layer == found.n_layer  # no UserError


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - set(GPT2_SIZES)))
def test_every_run_evaluates_and_reaches_the_end_of_its_schedule(name):
    found = options(name)
    assert found.eval_interval <= found.max_iters and found.max_iters % found.eval_interval == 0
    if found.decay_lr:
        assert found.warmup_iters < found.lr_decay_iters == found.max_iters
        assert found.min_lr == pytest.approx(found.learning_rate / 10)


def test_no_two_experiments_share_a_folder():
    folders = [values(name)["out_dir"] for name in EXPERIMENTS if not values(name).get("eval_only")]
    assert len(set(folders)) == len(folders) == len(EXPERIMENTS) - len(GPT2_SIZES)


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
    config = model_config(found, vocab_size)
    model = eqx.filter_eval_shape(GPT, config, key=jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(model)) == pytest.approx(parameters, rel=0.01)
    assert found.max_iters * tokens_of_a_step(found) == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize("name", NANOGPT)
def test_nanogpts_experiments_have_nanogpts_values(name):
    assert NANOGPT[name].items() <= values(name).items()


@pytest.mark.parametrize("name, weights", [*GPT2_SIZES.items(), ("finetune_shakespeare", "gpt2-xl")])
def test_each_run_from_given_weights_asks_for_the_right_ones(name, weights):
    shape = {"n_layer": 48, "vocab_size": 50257}
    asked = []

    def shape_of(init_from):
        asked.append(init_from)
        return shape

    found = parse_options([path(name)], shape_of)
    assert asked == [weights] and found.init_from == weights
    assert found == replace(options(name), init_from=weights, **shape)
