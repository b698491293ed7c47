"""--profile: the files it writes, what they hold, and the lines that tell of them."""

import gzip
import json

import jax
import pytest

import train
from runs import profile
from tests.helpers import refusal


def steps_traced(folder) -> list[list[int]]:
    """The numbers of the steps in each trace of the folder."""
    paths = sorted(folder.glob("plugins/profile/*/perfetto_trace.json.gz"))
    events = [json.loads(gzip.open(path).read())["traceEvents"] for path in paths]
    return [[int(e["args"]["step_num"]) for e in of if e.get("name") == "train"] for of in events]


def lines(capsys) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("profile: ")]


@pytest.mark.slow
def test_a_run_leaves_the_hlo_and_a_trace_of_four_steps_and_a_resumed_one_does_as_it_is_told(
    tiny, tmp_path, capsys
):
    out, folder = tmp_path / "out", tmp_path / "profiles" / "first"
    train.main(tiny(out, max_iters=16, eval_interval=16, profile=folder))
    assert steps_traced(folder) == [[10, 11, 12, 13]]
    assert list(folder.glob("plugins/profile/*/*.xplane.pb"))
    hlo = (folder / "train_step.hlo.txt").read_text()
    assert hlo.startswith("HloModule jit_train_step,") and "\nENTRY " in hlo
    written, traced = lines(capsys)
    assert str(folder / "train_step.hlo.txt") in written
    assert f"steps 10 to 13 of this run: open {folder}" in traced and "ui.perfetto.dev" in traced

    train.main(tiny(out, max_iters=18, eval_interval=16, init_from="resume"))
    assert lines(capsys) == [] and steps_traced(folder) == [[10, 11, 12, 13]]

    train.main(
        tiny(out, max_iters=18 + 12, eval_interval=99, init_from="resume", profile=tmp_path / "second")
    )
    assert steps_traced(tmp_path / "second") == [[10, 11]]
    assert "steps 10 to 11 of this run" in lines(capsys)[1]


def test_a_run_too_short_for_a_trace_says_so(tiny, tmp_path, capsys):
    train.main(tiny(tmp_path / "out", max_iters=3, profile=tmp_path / "profile"))
    assert "no trace: it begins after 10 steps, and this run had 3" in lines(capsys)[1]
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["train_step.hlo.txt"]


def test_a_folder_that_cannot_be_written_is_one_line(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "profile"
    said = refusal(train.main, tiny(tmp_path / "out", max_iters=1, profile=folder))
    assert said.startswith(f"{folder / 'train_step.hlo.txt'}: cannot be written") and "--profile" in said


def test_the_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    quiet = profile.Profile(str(tmp_path / "profile"), None, None)
    for step in range(20):
        with quiet.step(step):
            pass
    quiet.close(20)
    assert not (tmp_path / "profile").exists()
