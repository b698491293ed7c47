"""The device decides the dtype of `auto`, and how many logits there may be at once."""

import pytest

import fast
from config.options import Options
from tests.helpers import CPU, H100, V5E, on
from training.state import model_config


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
    monkeypatch.setattr(fast, "cpu_flags", lambda: flags)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert model_config(Options(), 9).compute.dtype == dtype
    assert model_config(Options(dtype="float32"), 9).compute.dtype == "float32"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # the library may not use them
    assert model_config(Options(), 9).compute.dtype == "float32"
    with on(*H100):
        assert model_config(Options(), 9).compute.dtype == "bfloat16"


@pytest.mark.parametrize("device, rows", [(CPU, 1), (V5E, 13), (H100, 68)])
def test_the_memory_of_the_target_says_how_many_rows_of_logits_there_may_be(device, rows):
    """Of GPT-2's 1024 x 50304, in bfloat16 a twelfth of the memory; on a CPU, 2^26."""
    with on(*device):
        assert model_config(Options(), 9).compute.max_logits // (1024 * 50304) == rows
