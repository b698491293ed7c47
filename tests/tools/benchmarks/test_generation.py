"""Decoding and serving are timed in turns, and printed as they were timed; all ways write the same text."""

from types import SimpleNamespace

import pytest

import bench
from config.options import Options
from tests.helpers import refusal
from tools.benchmarks import generation
from training.state import create_state, model_config

SHAPE = dict(n_layer=2, n_head=4, n_embd=32, block_size=generation.DECODED + 1)


@pytest.mark.slow
def test_decoding_gives_the_same_text_with_and_without_a_cache():
    # Within block_size, that is: past it, the two choose their windows by different rules.
    model = create_state(model_config(Options(**SHAPE), vocab_size=33), Options(**SHAPE)).model
    text = generation.with_cache(model)
    assert len(text) == generation.DECODED and len(set(text)) > 1
    assert text == generation.without_cache(model)


def test_ways_take_turns_and_the_figures_are_those_of_the_clock(monkeypatch, capsys):
    """On a clock that each way of decoding moves on by times of the test's own: 5 runs after a first."""
    clock, calls = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(
        generation, "time", SimpleNamespace(perf_counter=lambda: clock.now, process_time=lambda: 0.0)
    )

    def way(name, *seconds):
        left = iter(seconds)

        def run(model):
            calls.append(name)
            clock.now += next(left)

        monkeypatch.setattr(generation, name, run)

    way("with_cache", 9.0, 0.5, 0.25, 0.125, 7.0, 0.5)
    way("without_cache", 9.0, 2.0, 3.0, 1.0, 2.0, 1.0)
    options = Options(**SHAPE)
    generation.report_decoding(model_config(options, vocab_size=33), options)
    assert calls == ["with_cache", "without_cache"] * 6
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert {name: [cell.strip() for cell in cells if cell] for name, *cells in rows} == {
        "with the key/value cache": ["512", "1.953"],
        "whole context every token": ["128", "7.812"],
        "ratio": ["4.0x"],
    }


def test_serving_without_a_run_is_one_line(tmp_path):
    shape = ["--device=cpu", "--mesh=data:1", "--vocab_size=33", "--n_layer=1", "--n_head=2", "--n_embd=8"]
    assert "no checkpoint" in refusal(bench.main, ["--serve", f"--out_dir={tmp_path}", *shape])
