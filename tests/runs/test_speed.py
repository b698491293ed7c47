"""Speed: its figures from a clock that the test sets."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from config.options import Options
from model import GPTConfig
from runs import speed
from runs.hardware import peak_memory
from runs.speed import RECENT, Speed, flops_per_token
from tests.models import changed

OPTIONS = replace(Options(), gradient_accumulation_steps=2, batch_size=3, block_size=5)
TOKENS = 2 * 3 * 5
CONFIG = changed(GPTConfig(block_size=5), dtype="bfloat16")


@pytest.fixture
def clock(monkeypatch):
    """`clock.now`, in seconds: what time.perf_counter tells runs/speed.py."""

    class Clock:
        now = 1000.0

        def perf_counter(self):
            return self.now

    monkeypatch.setattr(speed, "time", clock := Clock())
    return clock


def run_step(speed, clock, data, seconds):
    """A step of so many seconds, with so many before it to make its batch."""
    with speed.making_batch():
        clock.now += data
    clock.now += seconds
    speed.ended(clock.now)


def test_figures_are_of_the_steps_since_the_last_and_of_no_pause(clock):
    speed = Speed(OPTIONS, CONFIG, devices=4)
    run_step(speed, clock, 0.25, 9.0)
    speed.figures()
    run_step(speed, clock, 0.25, 1.0)
    speed.pause()
    clock.now += 100  # an evaluation
    run_step(speed, clock, 0.75, 2.0)
    figures = speed.figures()
    assert figures["ms"] == 1e3 * (0.25 + 1.0 + 0.75 + 2.0) / 2
    assert figures["data_ms"] == 1e3 * (0.25 + 0.75) / 2
    assert figures["tokens_per_second"] == pytest.approx(TOKENS / 2.0)
    assert figures["tokens_per_second_per_device"] == pytest.approx(TOKENS / 2.0 / 4)


def test_a_batch_counts_for_its_own_step_though_the_step_before_ends_later(clock):
    speed = Speed(OPTIONS, CONFIG, devices=1)
    for data in (1.0, 3.0):
        with speed.making_batch():
            clock.now += data
    for data in (1.0, 3.0):
        clock.now += 10
        speed.ended(clock.now)
        assert speed.figures()["data_ms"] == 1e3 * data


def test_spread_is_of_the_last_steps_without_a_tenth_at_either_end(clock):
    speed = Speed(OPTIONS, CONFIG, devices=1)
    run_step(speed, clock, 0, 5000)
    assert speed.figures()["ms_spread"] == 0
    times = np.random.default_rng(0).permutation(RECENT).astype(float) + 1
    for seconds in times:
        run_step(speed, clock, 0, seconds)
    # Of 1 ... 100, what is left without 1 ... 10 and 91 ... 100.
    assert speed.figures()["ms_spread"] == pytest.approx(1e3 * (90 - 11))


class H100:
    device_kind = "NVIDIA H100 80GB HBM3"


def test_mfu_is_the_model_flops_over_the_peak_of_all_devices(clock, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [H100] * 2)
    speed = Speed(OPTIONS, CONFIG, devices=2)
    run_step(speed, clock, 0, 1e-3)
    flops = flops_per_token(CONFIG, 5) * TOKENS
    assert speed.figures()["mfu"] == pytest.approx(flops / 1e-3 / (2 * 989e12))


def test_there_is_no_mfu_without_a_known_peak_nor_of_adapters(clock, monkeypatch):
    unknown = Speed(OPTIONS, CONFIG, devices=1)  # a CPU
    monkeypatch.setattr(jax, "devices", lambda: [H100])
    float32 = Speed(OPTIONS, changed(CONFIG, dtype="float32"), devices=1)
    adapters = Speed(replace(OPTIONS, lora_rank=8), CONFIG, devices=1)  # most weights have no gradient
    for unpeaked in (unknown, float32, adapters):
        run_step(unpeaked, clock, 0, 1)
        assert "mfu" not in unpeaked.figures()


def test_memory_is_the_devices_peak_where_it_tells_and_the_process_peak_elsewhere(clock, monkeypatch):
    before = peak_memory()
    filled = np.ones(before // 4 + 2**24, np.int32)  # by itself more than the process has held so far
    assert peak_memory() >= filled.nbytes > before

    class Device:
        def memory_stats(self):
            return {"peak_bytes_in_use": 3_500_000, "bytes_in_use": 1}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    speed = Speed(OPTIONS, CONFIG, devices=1)
    run_step(speed, clock, 0, 1)
    assert speed.figures()["memory_mb"] == 3.5
