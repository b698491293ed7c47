"""The table of devices: which of its rows a device's name finds."""

import os

import pytest

from common.devices import DEVICES, count_cpus, known_device


@pytest.mark.parametrize(
    "kind, teraflops",
    {
        "NVIDIA H100 80GB HBM3": 989,
        "NVIDIA H100 PCIe": 756,
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
        "NVIDIA A10G": 70,
        "NVIDIA A10": 125,
        "NVIDIA GeForce RTX 4090": 165,
        "NVIDIA GeForce RTX 4090 Laptop GPU": None,
        "TPU v4": 275,
        "TPU v4 lite": None,
        "TPU v5 lite": 197,
        "cpu": None,
    }.items(),
)
def test_known_peaks_and_unknown_devices(kind, teraflops):
    found = known_device(kind)
    assert found.peak == teraflops * 1e12 if teraflops else found is None


def test_a_row_becomes_bytes_and_bytes_a_second():
    h100 = known_device("NVIDIA H100 80GB HBM3")
    assert (h100.memory, h100.bandwidth) == (84_942_979_072, 3352e9)
    assert (h100.link, h100.between_hosts) == (450e9, 50e9)
    assert not known_device("NVIDIA L4").between_hosts


def test_what_jax_calls_a_device_finds_its_own_row():
    assert all(known_device(device.kind) is device for device in DEVICES if device.peak)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone limits a process so")
def test_cores_are_those_that_the_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert count_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert count_cpus() == len(allowed)
