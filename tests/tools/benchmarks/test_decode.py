"""The decoding report: both ways write the same text, and what is printed is their time."""

from types import SimpleNamespace

import pytest

from config.options import Options
from tools.benchmarks import decode
from training.state import create_state, model_config

SHAPE = dict(n_layer=2, n_head=4, n_embd=32, block_size=decode.DECODED + 1)


@pytest.mark.slow
def test_decoding_gives_the_same_text_with_and_without_a_cache():
    # Within block_size, that is: past it, the two choose their windows by different rules.
    model = create_state(model_config(Options(**SHAPE), vocab_size=33), Options(**SHAPE)).model
    text = decode.with_cache(model)
    assert len(text) == decode.DECODED and len(set(text)) > 1
    assert text == decode.without_cache(model)


def test_the_figures_are_those_of_the_clock(monkeypatch, capsys):
    """On a clock that each way of decoding moves on by times of the test's own: 5 runs after a first."""
    now = 0.0
    monkeypatch.setattr(decode, "time", SimpleNamespace(perf_counter=lambda: now))

    def takes(*seconds):
        left = iter(seconds)

        def way(model):
            nonlocal now
            now += next(left)

        return way

    monkeypatch.setattr(decode, "with_cache", takes(9.0, 0.5, 0.25, 0.125, 7.0, 0.5))
    monkeypatch.setattr(decode, "without_cache", takes(9.0, 2.0, 3.0, 1.0, 2.0, 1.0))
    options = Options(**SHAPE)
    decode.report_decoding(model_config(options, vocab_size=33), options)
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    figures = {
        name: [float(x.rstrip("x").replace(",", "")) for x in row.split()]
        for name, row in rows.items()
        if "tokens" not in row
    }
    assert figures == {
        "with the key/value cache": pytest.approx([256 / 0.5, 1e3 * 0.5 / 256], abs=1e-3),
        "whole context every token": pytest.approx([256 / 2.0, 1e3 * 2.0 / 256], abs=1e-3),
        "ratio": [4.0],
    }
