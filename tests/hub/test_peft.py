"""Adapters as PEFT loads them, beside the very model of `transformers` that the run started from."""

import numpy as np
import peft
import pytest
import torch

import train
from config.command_line import UserError
from hub import peft as export
from runs.load import load_run
from tests.reference import random_reference


@pytest.fixture
def run(tiny, tmp_path):
    """`run(name, ...)` trains adapters beside a random reference: that model, and the run's folder."""

    def train_beside(name, **changes):
        model = random_reference(name)
        model.save_pretrained(tmp_path / "base")
        options = {
            "init_from": tmp_path / "base",
            "max_iters": 5,
            "lora_rank": 4,
            "lora_alpha": 8.0,
        } | changes
        arguments = [word for word in tiny(tmp_path / "run", **options) if not word.startswith("--n_")]
        train.main(arguments)
        return model, tmp_path / "run"

    return train_beside


@pytest.mark.parametrize(
    "name, targets",
    [("gpt2", "c_attn,c_proj,c_fc"), ("llama", "c_attn,c_proj,c_fc"), ("llama", "attn.c_proj")],
)
def test_peft_computes_the_same(run, name, targets, tmp_path):
    theirs, folder = run(name, lora_targets=targets)
    export.main([f"--out_dir={folder}", f"--to={tmp_path / 'adapter'}"])
    tokens = np.random.default_rng(0).integers(65, size=(2, 8))
    ours = np.asarray(load_run(str(folder))[0](tokens))
    with torch.no_grad():
        before = theirs(torch.tensor(tokens)).logits.numpy()
        adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter")
        after = adapted(torch.tensor(tokens)).logits.numpy()
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(ours, after, atol=1e-4)
    adapters = sum(x.numel() for name, x in adapted.named_parameters() if "lora_" in name)
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 4 * adapters + 20_000


def test_a_run_without_adapters_is_one_line(tiny, tmp_path):
    train.main(tiny(tmp_path / "run", max_iters=1))
    with pytest.raises(UserError, match="has no adapters: python -m hub.export") as error:
        export.main([f"--out_dir={tmp_path / 'run'}", f"--to={tmp_path / 'adapter'}"])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "adapter").exists()
