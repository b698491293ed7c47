"""tools/cloud/look.py here: the state of runs, and what is shown. In the Volume: tests/test_app.py."""

import json
import os
import time

import pytest

from config.options import Options
from tests.helpers import refusal
from tools.cloud import look
from tools.cloud.places import Here

RECORDS = [
    {"iter": 0, "train/loss": 4.0, "val/loss": 4.1},
    {"iter": 0, "loss": 4.0, "lr": 0.0},
    {"iter": 10, "train/loss": 2.0, "val/loss": 2.5},
    {"iter": 20, "train/loss": 1.0, "val/loss": 3.0},
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of 20 steps in a folder of its own, whose last checkpoint is at iter 10."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    (folder / "checkpoints" / "10").mkdir(parents=True)
    (folder / "options.json").write_text(json.dumps(Options(max_iters=20).to_json()))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return folder


def test_a_run_is_running_as_long_as_it_holds_its_lock_and_writes(run):
    def state():
        return look.standing(Here(), "mine").state

    assert state() == "stopped"
    (run / "lock").write_text("{}")
    assert state() == "running"
    old = time.time() - 2 * look.SILENT
    for path in run.rglob("*"):
        os.utime(path, (old, old))
    assert state() == "stopped"
    (run / "lock").unlink()
    (run / "checkpoints" / "20").mkdir()
    assert state() == "finished"


def test_the_list_has_a_line_for_each_run_and_names_what_it_cannot_read(run, capsys, tmp_path):
    (tmp_path / "no-run").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "options.json").write_text("{")
    look.list_runs(Here())
    damaged, line = capsys.readouterr().out.splitlines()
    assert damaged.startswith("damaged/options.json: cannot be read as options")
    assert line.split()[0] == "mine"
    assert "stopped at iter 20 of 20, val loss 3.0000, best 2.5000" in line


def test_an_empty_folder_has_no_run(tmp_path, capsys):
    look.list_runs(Here(tmp_path))
    assert capsys.readouterr().out == "no run is there\n"


def test_watching_shows_each_record_once_and_ends_with_the_run(run, capsys, monkeypatch):
    """Also when it is resumed meanwhile, and does its last steps again."""
    (run / "lock").write_text("{}")
    changes = [
        lambda: (run / "metrics.jsonl").write_text(json.dumps(RECORDS[0]) + "\n"),
        lambda: (run / "lock").unlink(),
    ]
    monkeypatch.setattr(time, "sleep", lambda seconds: changes.pop(0)())
    look.watch(Here(), "mine")
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if line.startswith("iter ")]
    assert shown[0] == "iter 0: train/loss 4, val/loss 4.1" and len(shown) == len(RECORDS)
    assert lines[-1].startswith("mine") and "stopped at iter 10 of 20" in lines[-1]
    assert (run.parent / "mine.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_not_there_is_refused(run):
    assert "--run-name=other: there is no such run" in refusal(look.watch, Here(), "other")
