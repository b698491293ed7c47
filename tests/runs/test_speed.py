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


@pytest.mark.parametrize("remat", ["none", "block"])
def test_hfu_counts_what_is_computed_twice(clock, monkeypatch, remat):
    T, V, D, L = 64, 512, 512, 2
    options = replace(OPTIONS, block_size=T)
    shape = dict(vocab_size=V, n_layer=L, n_head=4, n_embd=D, mlp="gelu", unroll=1, remat=remat)
    config = changed(CONFIG, block_size=T, **shape)
    monkeypatch.setattr(jax, "devices", lambda: [H100])
    speed = Speed(options, config, devices=1)
    run_step(speed, clock, 0, 1e-3)
    figures = speed.figures()
    # Each layer's forward pass once more, a third of its products, but for the MLP's last: what it gives is
    # added to the residual stream, and no gradient asks for it.
    again = 2 * L * (12 * D * D - 4 * D * D) + 4 * L * T * D if remat == "block" else 0
    products = flops_per_token(config, T) + again
    # XLA adds one for each element of what is no product, which at this size is 1%.
    assert 1 < figures["hfu"] / figures["mfu"] / (products / flops_per_token(config, T)) < 1.02


def test_adapters_have_an_hfu_that_leaves_out_the_gradients_of_the_weights(clock, monkeypatch):
    T, V, D, r = 64, 512, 256, 8
    monkeypatch.setattr(jax, "devices", lambda: [H100])

    def counted(L):
        """FLOPs per token with adapters on the MLPs of L layers."""
        options = replace(OPTIONS, block_size=T, n_layer=L, n_embd=D, lora_rank=r, lora_targets="mlp.c_fc")
        config = changed(CONFIG, block_size=T, vocab_size=V, n_layer=L, n_head=4, n_embd=D, mlp="gelu")
        speed = Speed(options, config, devices=1)
        run_step(speed, clock, 0, 1e-3)
        figures = speed.figures()
        assert "mfu" not in figures
        return figures["hfu"] * 989e12 / figures["tokens_per_second"]

    # Each product forth and back to its input; those of the adapters to their weights, too.
    layer, head = 4 * 12 * D * D + 12 * T * D + 6 * r * (D + 4 * D), 4 * V * D
    # What is no product is as much as above, of two thirds as many products.
    assert 1 < (counted(3) - counted(2)) / layer < 1.03
    assert counted(2) / (2 * layer + head) < 1.03
    # Below the first adapter nobody asks for a gradient. JAX 0.12 leaves out the products for it.
    unasked = 3 * 2 * D * D + 4 * 2 * T * D
    assert 1 < counted(2) / (2 * layer + head - unasked)


def test_there_is_no_mfu_without_a_known_peak(clock, monkeypatch):
    unknown = Speed(OPTIONS, CONFIG, devices=1)  # a CPU
    monkeypatch.setattr(jax, "devices", lambda: [H100])
    float32 = Speed(OPTIONS, changed(CONFIG, dtype="float32"), devices=1)
    for unpeaked in (unknown, float32):
        run_step(unpeaked, clock, 0, 1)
        assert not {"mfu", "hfu"} & unpeaked.figures().keys()


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
