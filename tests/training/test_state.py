"""The model that options describe: its shape, and how the device computes it."""

from dataclasses import replace

import pytest

from config.options import Options
from tests.helpers import CPU, H100, V5E, on, refusal
from training.compute import choose_how
from training.state import model_config

V = 65
TINY = replace(Options(), n_layer=2, n_head=2, n_embd=32, block_size=8, unroll=1)


@pytest.mark.parametrize(
    "device, changes, dtype, attention",
    [
        (CPU, {}, "float32", "einsum"),
        (CPU, dict(dtype="bfloat16"), "bfloat16", "einsum"),
        (H100, {}, "bfloat16", "cudnn"),
        (H100, dict(attention="cudnn"), "bfloat16", "cudnn"),
        (H100, dict(attention="einsum"), "bfloat16", "einsum"),
        (H100, dict(deterministic=True), "bfloat16", "einsum"),
        (H100, dict(dtype="float32"), "float32", "einsum"),
        (H100, dict(n_embd=24), "bfloat16", "einsum"),  # heads of 12
        (V5E, {}, "bfloat16", "einsum"),  # rows of 8 tokens
        (V5E, dict(block_size=128), "bfloat16", "splash"),
        (V5E, dict(block_size=128, dtype="float32"), "float32", "splash"),
    ],
)
def test_the_devices_of_the_mesh_decide_dtype_and_attention(device, changes, dtype, attention):
    with on(*device):
        options = replace(TINY, **changes)
        config = model_config(options, V)
        found = choose_how(options, config)
    result = "float32" if device == CPU else dtype  # rounded where that saves memory traffic
    assert (config.vocab_size, found.dtype, found.result, found.kernel) == (V, dtype, result, attention)


@pytest.mark.parametrize("name, value", [("n_embd", 33), ("n_kv_head", 3)])
def test_a_model_that_cannot_be_is_one_line(name, value):
    assert f"{name}={value}" in refusal(model_config, replace(TINY, **{name: value}), V)


@pytest.mark.parametrize(
    "name", ["n_layer", "n_head", "n_embd", "mlp", "norm", "bias", "dropout", "unroll", "remat", "window"]
)
def test_the_options_reach_the_model(name):
    values = dict(
        n_layer=3, n_head=4, n_embd=64, mlp="gelu", norm="rmsnorm", bias=True, dropout=0.3, unroll=2
    ) | dict(remat="dots", window=3)
    options = replace(TINY, **values)
    config = model_config(options, V)
    assert getattr(config if hasattr(config, name) else choose_how(options, config), name) == values[name]


@pytest.mark.parametrize("unroll, on_cpu", [(0, 1), (1, 1), (2, 2), (3, 1), (4, 1)])
def test_remat_keeps_the_layers_a_loop_on_a_cpu_only(unroll, on_cpu):
    options = replace(TINY, n_layer=3, unroll=unroll, remat="block")
    assert choose_how(options, model_config(options, V)).unroll == on_cpu
    assert choose_how(replace(options, remat="none"), model_config(options, V)).unroll == unroll
    with on(*H100):
        assert choose_how(options, model_config(options, V)).unroll == unroll


def test_document_mask_gives_the_model_the_end_of_text_token():
    assert model_config(replace(TINY, document_mask=True), V, 7).document_start == 7
    assert model_config(TINY, V, 7).document_start is None
    said = refusal(model_config, replace(TINY, document_mask=True), V)
    assert said.startswith("document_mask=True ") and "dataset=openwebtext" in said
