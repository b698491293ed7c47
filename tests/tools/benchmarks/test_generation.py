"""Both ways of decoding write the same text; a server is asked by several clients."""

import json

import pytest

import bench
import train
from config.options import Options
from fast import How
from tests.helpers import refusal
from tests.models import TINY, large
from tools.benchmarks import generation


def test_decoding_gives_the_same_text_with_and_without_a_cache(monkeypatch):
    # Within block_size, that is: past it, the two choose their windows by different rules.
    monkeypatch.setattr(generation, "NEW", 15)
    model = large(TINY, How(unroll=1))
    texts = generation.decode(model, 4)
    assert texts.shape == (4, 15) and len(set(texts[0].tolist())) > 1
    assert texts.tolist() == [generation.recompute(model)] * 4


def test_decoding_is_measured_for_one_text_and_for_several_at_once(monkeypatch):
    calls = []
    monkeypatch.setattr(generation, "recompute", lambda model: calls.append(model.how.dtype))
    monkeypatch.setattr(generation, "decode", lambda model, n: calls.append(n))
    times = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: 0.5 * next(times))  # each takes 0.5 s
    figures = generation.measure_decoding(TINY, Options(dtype="bfloat16"))
    assert calls == ["bfloat16", 1, 4, 16] * (1 + generation.TURNS)  # as sample.py computes it
    assert [x["tokens_per_second"] for x in figures] == [200, 200, 800, 3200]


@pytest.mark.slow
def test_the_server_is_asked_by_more_and_more_clients(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(generation, "ROWS", (1, 2))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # of no use for a server on this machine
    train.main(tiny(tmp_path / "a run", max_iters=1, eval_interval=1, block_size=32))
    bench.main(["--serve", f"--json={tmp_path}/served.json", f"--out_dir={tmp_path}/a run", "--device=cpu"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " at a time" in line]
    assert [row[0] for row in rows] == ["1", "2"] and all(float(x) > 0 for row in rows for x in row[5:])
    first, second = json.loads((tmp_path / "served.json").read_text())["figures"]
    assert first["name"] == "1 at a time" and second["first_token_ms_p95"] > 0


@pytest.mark.slow
def test_serving_without_a_run_is_one_line(tmp_path):
    assert "serve.py did not start there" in refusal(bench.main, ["--serve", f"--out_dir={tmp_path}/none"])
