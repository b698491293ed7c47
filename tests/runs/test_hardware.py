"""Which peak a device has, by what JAX calls it, and how long simulated ones wait for each other."""

import os

import pytest

from runs.hardware import peak_flops, wait_for_simulated_devices


@pytest.mark.parametrize(
    "kind, teraflops",
    {
        "NVIDIA A100-SXM4-80GB": 312,
        "NVIDIA H100 80GB HBM3": 989,
        "NVIDIA H100 PCIe": 756,
        "NVIDIA H200": 989,
        "NVIDIA L4": 121,
        "NVIDIA A10G": 70,
        "NVIDIA A10": 125,
        "NVIDIA GeForce RTX 4090": 165,
        "TPU v4": 275,
        "TPU v5 lite": 197,
        "TPU v5": 459,
        "TPU v5p": 459,
        "TPU v6 lite": 918,
    }.items(),
)
def test_known_peaks(kind, teraflops):
    assert peak_flops(kind) == teraflops * 1e12


@pytest.mark.parametrize(
    "kind",
    [
        "cpu",
        "NVIDIA L40S",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GB200",
        "TPU v4 lite",
        "TPU7x",
    ],
)
def test_unknown_devices_have_no_peak(kind):
    assert peak_flops(kind) is None


@pytest.mark.parametrize("given", ["", "--xla_cpu_collective_call_terminate_timeout_seconds=5"])
def test_simulated_devices_wait_for_each_other_unless_the_user_says_how_long(monkeypatch, given):
    monkeypatch.setenv("XLA_FLAGS", given)  # these tests have 8 devices, so this XLA knows the flags
    wait_for_simulated_devices()
    once = os.environ["XLA_FLAGS"]
    wait_for_simulated_devices()
    flags = dict(flag.split("=") for flag in once.split())
    prefix = "--xla_cpu_collective_call_"
    assert flags.keys() == {f"{prefix}{event}_timeout_seconds" for event in ("warn_stuck", "terminate")}
    assert (flags[f"{prefix}terminate_timeout_seconds"] == "5") == bool(given)
    assert os.environ["XLA_FLAGS"] == once
