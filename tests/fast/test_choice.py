"""The device decides the dtype and the kernel of `auto`, and how many logits there may be at once."""

from dataclasses import replace

import pytest

from config.options import Options
from tests.helpers import CPU, H100, V5E, on, refusal
from training import compute
from training.compute import choose_how, fastest_attention
from training.state import model_config


def how(options):
    return choose_how(options, model_config(options, 9))


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
    assert how(Options()).dtype == dtype
    assert how(Options(dtype="float32")).dtype == "float32"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # the library may not use them
    assert how(Options()).dtype == "float32"
    with on(*H100):
        assert how(Options()).dtype == "bfloat16"


@pytest.mark.parametrize("device, rows", [(CPU, 1), (V5E, 13), (H100, 68)])
def test_the_memory_of_the_target_says_how_many_rows_of_logits_there_may_be(device, rows):
    """Of GPT-2's 1024 x 50304, in bfloat16 a twelfth of the memory; on a CPU, 2^26."""
    with on(*device):
        assert how(Options()).max_logits // (1024 * 50304) == rows


# --- attention's kernel ---


@pytest.mark.parametrize(
    "kind, platform, expected",
    [
        (*CPU, "einsum"),
        (*V5E, "splash"),
        ("TPU v6 lite", "tpu", "splash"),
        (*H100, "cudnn"),
        ("NVIDIA GeForce RTX 4090", "gpu", "cudnn"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "gpu", "cudnn"),
        ("NVIDIA GeForce RTX 2080 Ti", "gpu", "einsum"),
        ("Tesla T4", "gpu", "einsum"),
        ("AMD Instinct MI300X", "gpu", "einsum"),
    ],
)
def test_the_fastest_depends_on_the_card(kind, platform, expected):
    with on(kind, platform):
        assert fastest_attention(1024, 64, "bfloat16") == expected


@pytest.mark.parametrize(
    "device, kernel, T, head_size, dtype, expected",
    [
        (H100, "cudnn", 1024, 64, "bfloat16", True),
        (H100, "cudnn", 1024, 64, "float32", False),
        (H100, "cudnn", 1024, 256, "bfloat16", False),
        (H100, "cudnn", 1024, 12, "bfloat16", False),
        (H100, "cudnn", 1023, 64, "bfloat16", False),
        (H100, "splash", 1024, 64, "bfloat16", False),
        (("Tesla T4", "gpu"), "cudnn", 1024, 64, "bfloat16", False),
        (V5E, "splash", 1024, 80, "float32", True),
        (V5E, "splash", 192, 64, "bfloat16", False),
    ],
)
def test_a_kernel_is_taken_where_device_shape_and_dtype_allow_it(
    device, kernel, T, head_size, dtype, expected
):
    options = Options(n_head=4, n_embd=4 * head_size, block_size=T, dtype=dtype)
    with on(*device):
        assert (how(options).kernel == kernel) == expected
        if expected:
            assert how(replace(options, attention=kernel)).kernel == kernel
            said = refusal(how, replace(options, attention=kernel, dropout=0.1))
            assert said.endswith("dropout or deterministic; use attention=auto")
        else:
            said = refusal(how, replace(options, attention=kernel))
            assert said.startswith(f"attention={kernel} does not suit the device")
