"""Which dtype `auto` takes, by what the CPU says of its instructions."""

import pytest

from config.options import Options
from layers import device
from tests.helpers import H100, on
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
    monkeypatch.setattr(device, "cpu_flags", lambda: flags)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert model_config(Options(), 9).dtype == dtype
    assert model_config(Options(dtype="float32"), 9).dtype == "float32"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # the library may not use them
    assert model_config(Options(), 9).dtype == "float32"
    with on(*H100):
        assert model_config(Options(), 9).dtype == "bfloat16"
