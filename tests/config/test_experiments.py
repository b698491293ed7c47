"""The experiments in config/: each one runs as a config file, and nanoGPT's have nanoGPT's values."""

import ast
from pathlib import Path

import pytest

from config.command_line import given
from config.options import Options

CONFIG = Path(__file__).parents[2] / "config"
EXPERIMENTS = sorted(path for path in CONFIG.glob("*.py") if path.name not in ("__init__.py", "options.py"))

TRAIN_GPT2 = {
    "wandb_project": "owt",
    "wandb_run_name": "gpt2-124M",
    "batch_size": 12,
    "block_size": 1024,
    "gradient_accumulation_steps": 40,
    "max_iters": 600000,
    "lr_decay_iters": 600000,
    "eval_interval": 1000,
    "eval_iters": 200,
    "log_interval": 10,
    "weight_decay": 0.1,
    "mlp": "gelu",
}
FINETUNE = {
    "out_dir": "out-shakespeare",
    "eval_interval": 5,
    "eval_iters": 40,
    "wandb_project": "shakespeare",
    "dataset": "shakespeare",
    "always_save_checkpoint": False,
    "batch_size": 1,
    "gradient_accumulation_steps": 32,
    "max_iters": 20,
    "learning_rate": 3e-5,
    "decay_lr": False,
}
EVAL = {"batch_size": 8, "eval_iters": 500, "eval_only": True}


def values(path):
    """What a config file sets; where its weights are from is for `init_from` to know."""
    return given([str(path), "--init_from=scratch"], Options)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_sets_options_for_a_data_set_that_exists_and_says_what_to_expect(path):
    assert (CONFIG.parent / "data" / values(path)["dataset"] / "prepare.py").is_file()
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert "reports" in said or "not yet run" in said.lower() or "val loss" in said


def test_no_two_experiments_share_a_folder():
    folders = [values(path)["out_dir"] for path in EXPERIMENTS if not values(path).get("eval_only")]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize(
    "name, expected",
    [("train_gpt2", TRAIN_GPT2), ("finetune_shakespeare", FINETUNE)]
    + [(f"eval_gpt2{size}", EVAL) for size in ("", "_medium", "_large", "_xl")],
)
def test_nanogpts_experiments_have_nanogpts_values(name, expected):
    found = values(CONFIG / f"{name}.py")
    assert {option: found[option] for option in expected} == expected


@pytest.mark.parametrize("size", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_each_gpt2_is_evaluated_by_its_own_file(size):
    text = (CONFIG / f"eval_{size.replace('-', '_')}.py").read_text()
    assert f'init_from = "{size}"' in text
