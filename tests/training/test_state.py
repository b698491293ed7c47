"""Options describe a model's shape, and how a device computes it: dtype, kernel, loop, chunks."""

from dataclasses import replace

import pytest

from config.options import Options
from tests.helpers import CPU, H100, V5E, on, refusal
from training import compute
from training.compute import choose_how
from training.state import model_config

V = 65
TINY = replace(Options(), n_layer=2, n_head=2, n_embd=32, block_size=8, unroll=1)


def how(options):
    return choose_how(options, model_config(options, V))


def test_document_mask_gives_the_model_the_end_of_text_token():
    assert model_config(replace(TINY, document_mask=True), V, 7).document_start == 7
    assert model_config(TINY, V, 7).document_start is None
    said = refusal(model_config, replace(TINY, document_mask=True), V)
    assert said.startswith("document_mask=True ") and "dataset=openwebtext" in said


@pytest.mark.parametrize(
    "flags, dtype",
    {
        "avx2 avx512f avx512_bf16 amx_bf16 amx_tile": "bfloat16",  # Sapphire Rapids
        "avx2 avx512f avx512_bf16": "bfloat16",  # Zen 4
        "avx2 avx512f avx512_vnni": "float32",
        "asimd bf16": "float32",  # Arm: never tried
        "": "float32",  # not Linux
    }.items(),
)
def test_auto_is_bfloat16_on_a_cpu_that_multiplies_it(monkeypatch, flags, dtype):
    monkeypatch.setattr(compute, "cpu_flags", lambda: flags)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert how(TINY).dtype == dtype
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # the library may not use them
    assert how(TINY).dtype == "float32"


@pytest.mark.parametrize("device, rows", [(CPU, 1), (V5E, 13), (H100, 68)])
def test_the_memory_of_the_target_says_how_many_rows_of_logits_there_may_be(device, rows):
    """Of GPT-2's 1024 x 50304, in bfloat16 a twelfth of the memory; on a CPU, 2^26."""
    with on(*device):
        assert how(Options()).max_logits // (1024 * 50304) == rows


@pytest.mark.parametrize("unroll, on_cpu", [(0, 1), (2, 2), (3, 1), (4, 1)])
def test_remat_keeps_the_layers_a_loop_on_a_cpu_only(unroll, on_cpu):
    options = replace(TINY, n_layer=3, unroll=unroll, remat="block")
    assert how(options).unroll == on_cpu
    assert how(replace(options, remat="none")).unroll == unroll
    with on(*H100):
        assert how(options).unroll == unroll


@pytest.mark.parametrize(
    "device, changes, dtype, attention",
    [
        (CPU, {}, "float32", "einsum"),
        (CPU, dict(dtype="bfloat16"), "bfloat16", "einsum"),
        (H100, {}, "bfloat16", "cudnn"),
        (H100, dict(dtype="float32"), "float32", "einsum"),
        (("NVIDIA RTX PRO 6000 Blackwell Server Edition", "gpu"), {}, "bfloat16", "cudnn"),
        (("NVIDIA GeForce RTX 2080 Ti", "gpu"), {}, "bfloat16", "einsum"),
        (("Tesla T4", "gpu"), {}, "bfloat16", "einsum"),
        (("AMD Instinct MI300X", "gpu"), {}, "bfloat16", "einsum"),
        (H100, dict(n_embd=24), "bfloat16", "einsum"),  # heads of 12
        (H100, dict(n_embd=512), "bfloat16", "einsum"),  # heads of 256
        (H100, dict(block_size=9), "bfloat16", "einsum"),
        (H100, dict(deterministic=True), "bfloat16", "einsum"),
        (V5E, {}, "bfloat16", "einsum"),  # rows of 8 tokens
        (V5E, dict(block_size=128), "bfloat16", "splash"),
        (V5E, dict(block_size=128, n_embd=160, dtype="float32"), "float32", "splash"),
    ],
)
def test_device_shape_and_dtype_decide_and_a_kernel_that_does_not_suit_is_refused(
    device, changes, dtype, attention
):
    with on(*device):
        options = replace(TINY, **changes)
        found = how(options)
        for kernel in ("einsum", attention):
            assert how(replace(options, attention=kernel)).kernel == kernel
        for kernel in {"cudnn", "splash"} - {attention}:
            said = refusal(how, replace(options, attention=kernel))
            assert said.startswith(f"attention={kernel} does not suit the device")
        if attention != "einsum":
            said = refusal(how, replace(options, attention=attention, dropout=0.1))
            assert said.endswith("dropout or deterministic; use attention=auto")
    result = "float32" if device == CPU else dtype  # rounded where that saves memory traffic
    assert (found.dtype, found.result, found.kernel) == (dtype, result, attention)
