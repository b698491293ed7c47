"""The report of serving: each way is timed as often, and without a run it is one line."""

import bench
from tests.helpers import refusal
from tools.benchmarks.serve import TURNS, in_turns


def test_each_way_is_timed_in_turns_once_each_has_run():
    calls = []
    times = in_turns({name: lambda name=name: calls.append(name) for name in ("a", "b")})
    assert calls == ["a", "b"] * (TURNS + 1)
    assert [len(times[name]) for name in ("a", "b")] == [TURNS, TURNS]


def test_without_a_run_it_is_one_line(tmp_path):
    shape = ["--device=cpu", "--mesh=data:1", "--vocab_size=33", "--n_layer=1", "--n_head=2", "--n_embd=8"]
    assert "no checkpoint" in refusal(bench.main, ["--serve", f"--out_dir={tmp_path}", *shape])
